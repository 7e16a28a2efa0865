#include "c10d_plugin/net/gloo/entry.h"

#include <exception>

#include "c10d_plugin/net/gloo/gloo_collectives.h"

using namespace weft::collectives;  // NOLINT(google-build-using-namespace): one C function

extern "C" __attribute__((visibility("default"))) Collectives* weft_gloo_make_4(
    const std::shared_ptr<Mailbox>* mailbox, const std::vector<int>* members, unsigned channel,
    const weft::transport::InterruptHook* hook) {
  static const bool hooked = (weft::transport::setInterruptHook(*hook), true);
  static_cast<void>(hooked);
  try {
    return new GlooCollectives(*mailbox, *members, channel);
  } catch (const std::exception&) {
    return nullptr;
  }
}
