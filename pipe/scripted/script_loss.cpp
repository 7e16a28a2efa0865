#include "pipe/scripted/script_loss.h"

#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <mutex>
#include <sstream>

namespace weft::pipe {

namespace {

struct Loaded {
  std::string saved;
  torch::jit::Module module;  // never run: its copies are
};

struct Last {
  std::mutex mutex;
  std::shared_ptr<const Loaded> loaded;
};

// Never destroyed: a mini-batch may run while the process exits.
Last& last() {
  static auto* last = new Last;
  return *last;
}

std::shared_ptr<const Loaded> lastLoaded() {
  const std::lock_guard lock(last().mutex);
  return last().loaded;
}

}  // namespace

torch::jit::Module loadLoss(const std::string& saved) {
  auto loaded = lastLoaded();
  if (loaded == nullptr || loaded->saved != saved) {
    std::istringstream file(saved);
    loaded = std::make_shared<const Loaded>(Loaded{saved, torch::jit::load(file)});
    const std::lock_guard lock(last().mutex);
    last().loaded = loaded;
  }
  return loaded->module.deepcopy();
}

}  // namespace weft::pipe
