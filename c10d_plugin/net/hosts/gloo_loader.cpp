#include "c10d_plugin/net/hosts/gloo_loader.h"

#include <dlfcn.h>

#include "c10d_plugin/net/gloo/entry.h"

namespace weft::collectives {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;  // the sanitizers forbid RTLD_DEEPBIND
#else
// DEEPBIND: its names are looked for among its own dependencies first, where libgloo.so.0 is, and
// then in the program, where libtorch_cpu may have another Gloo.
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

struct Door {
  MakeGlooCollectives* make = nullptr;
  Error error;
};

Door openDoor() {
  const std::string path = pathBesideThisCode();
  const auto closed = [&](const std::string& why) {
    return Door{nullptr, {ErrorCode::kSystem, "Gloo's algorithms are not to be had: " + why}};
  };
  // Never closed: Gloo's threads and statics are not made for it.
  void* const library = ::dlopen(path.c_str(), kFlags);
  if (library == nullptr) return closed(::dlerror());
  const auto version = reinterpret_cast<GlooDoorVersion*>(::dlsym(library, "weft_gloo_door"));
  const auto make = reinterpret_cast<MakeGlooCollectives*>(::dlsym(library, "weft_gloo_make"));
  if (version == nullptr || make == nullptr || version() != kGlooDoor)
    return closed(path + " belongs to another build of Weft");
  return {make, {}};
}

const Door& door() {
  static const Door opened = openDoor();
  return opened;
}

}  // namespace

void setGlooLibrary(const std::string& path) { chosenPath() = path; }

Error glooAvailable() { return door().error; }

Result<std::unique_ptr<Collectives>> makeGlooCollectives(const std::shared_ptr<Mailbox>& mailbox,
                                                         const std::vector<int>& members,
                                                         unsigned channel) {
  if (door().make == nullptr) return door().error;
  const char* problem = nullptr;
  Collectives* const made = door().make(&mailbox, &members, channel, &problem);
  if (made == nullptr) return Error(ErrorCode::kSystem, problem);
  return std::unique_ptr<Collectives>(made);
}

}  // namespace weft::collectives
