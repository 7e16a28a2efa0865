#include "c10d_plugin/net/gloo/entry.h"

#include <exception>

#include "c10d_plugin/net/gloo/gloo_collectives.h"

using namespace weft::collectives;  // NOLINT(google-build-using-namespace): two C functions

extern "C" __attribute__((visibility("default"))) int weft_gloo_version() {
  return kGlooEntryVersion;
}

extern "C" __attribute__((visibility("default"))) Collectives* weft_gloo_make(
    const std::shared_ptr<Mailbox>* mailbox, const std::vector<int>* members, unsigned channel,
    const char** problem) {
  try {
    return new GlooCollectives(*mailbox, *members, channel);
  } catch (const std::exception&) {
    *problem = "Gloo refused to make a context";
    return nullptr;
  }
}
