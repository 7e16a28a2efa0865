#include "transport/memory/exported_file.h"

#include <mutex>
#include <utility>

#include "transport/memory/export_registry.h"

namespace weft::transport {

Result<std::shared_ptr<const ExportedFile>> ExportedFile::open(UniqueFd fd) {
  const Result<SealedMemory> memory = sealedMemory(fd.get(), F_SEAL_SHRINK | kContentSeals);
  if (!memory.ok()) return memory.error();
  ExportedBlock::Registry& all = ExportedBlock::Registry::get();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::erase_if(all.files, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const ExportedFile>& known =
      all.files[{memory.value().device, memory.value().inode}];
  std::shared_ptr<const ExportedFile> file = known.lock();
  if (file == nullptr) {
    file = std::make_shared<const ExportedFile>(std::move(fd), memory.value());
    known = file;
  }
  return file;
}

ExportedFile::ExportedFile(UniqueFd own, const SealedMemory& of) : fd(std::move(own)), memory(of) {
  ++count;
}

ExportedFile::~ExportedFile() { --count; }

}  // namespace weft::transport
