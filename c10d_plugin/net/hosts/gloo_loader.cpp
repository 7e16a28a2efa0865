#include "c10d_plugin/net/hosts/gloo_loader.h"

#include <dlfcn.h>

#include "c10d_plugin/net/gloo/entry.h"

namespace weft::collectives {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;  // the sanitizers forbid RTLD_DEEPBIND
#else
// DEEPBIND: its symbols resolve to its own dependency libgloo.so.0 first, not to the other Gloo in
// the program's libtorch_cpu.
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

std::string& chosenPath() {
  static std::string path;
  return path;
}

std::string pathBesideThisCode() {
  if (!chosenPath().empty()) return chosenPath();
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&glooAvailable), &info) == 0) return kGlooLibrary;
  const std::string here = info.dli_fname;
  return here.substr(0, here.rfind('/') + 1) + kGlooLibrary;
}

struct EntryPoint {
  MakeGlooCollectives* make = nullptr;
  Error error;
};

EntryPoint openLibrary() {
  const std::string path = pathBesideThisCode();
  const auto unavailable = [&](const std::string& why) {
    return EntryPoint{nullptr, {ErrorCode::kSystem, "Gloo's algorithms are not available: " + why}};
  };
  // Never closed: Gloo's threads and statics do not support it.
  void* const library = ::dlopen(path.c_str(), kFlags);
  if (library == nullptr) return unavailable(::dlerror());
  auto* const make = reinterpret_cast<MakeGlooCollectives*>(::dlsym(library, kGlooEntry));
  if (make == nullptr) return unavailable(path + " belongs to another build of Weft");
  return {make, {}};
}

const EntryPoint& entryPoint() {
  static const EntryPoint opened = openLibrary();
  return opened;
}

}  // namespace

void setGlooLibrary(const std::string& path) { chosenPath() = path; }

Error glooAvailable() { return entryPoint().error; }

Result<std::unique_ptr<Collectives>> makeGlooCollectives(const std::shared_ptr<Mailbox>& mailbox,
                                                         const std::vector<int>& members,
                                                         unsigned channel) {
  if (entryPoint().make == nullptr) return entryPoint().error;
  const transport::InterruptHook hook = transport::interruptHook();
  Collectives* const made = entryPoint().make(&mailbox, &members, channel, &hook);
  if (made == nullptr) return Error(ErrorCode::kSystem, "Gloo refused to make a context");
  return std::unique_ptr<Collectives>(made);
}

}  // namespace weft::collectives
