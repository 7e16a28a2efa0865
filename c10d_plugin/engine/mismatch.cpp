#include "c10d_plugin/engine/mismatch.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/store/all_gather.h"

namespace weft::process_group {

namespace {

constexpr std::chrono::milliseconds kPatience{10000};
constexpr std::size_t kMostTensors = 4;

std::string shapesText(const std::vector<TensorShape>& shapes) {
  std::string text;
  for (std::size_t i = 0; i < shapes.size() && i < kMostTensors; ++i) {
    if (i != 0) text += ", ";
    text += c10::getDtypeNames(shapes[i].dtype).first;
    text += "[";
    for (std::size_t k = 0; k < shapes[i].sizes.size(); ++k)
      text += (k == 0 ? "" : ", ") + std::to_string(shapes[i].sizes[k]);
    text += "]";
  }
  return shapes.size() > kMostTensors ? text + ", …" : text;
}

// " at train.py:31". torch's folder is known by the frame that called the group.
std::string siteText(const OpRecord& own) {
  if (!own.traceback) return {};
  constexpr std::string_view kCaller = "/torch/distributed/", kTorch = "/torch/";
  const auto symbols = torch::symbolize({own.traceback.get()});
  std::string torchs;
  for (const auto index : symbols.tracebacks.at(0)) {
    const auto& frame = symbols.all_frames.at(index);
    const std::string& file = frame.filename;
    if (const auto at = file.rfind(kCaller); torchs.empty() && at != std::string::npos)
      torchs = file.substr(0, at + kTorch.size());
    const bool is_torchs = !torchs.empty() && file.starts_with(torchs);
    if (!file.ends_with(".py") || is_torchs || file.find("/weft/_torch/") != std::string::npos)
      continue;
    return " at " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(frame.lineno);
  }
  return {};
}

}  // namespace

std::string describeCall(const OpRecord& own) {
  const std::string tensors = shapesText(own.inputs.empty() ? own.outputs : own.inputs);
  return (tensors.empty() ? "no tensors" : tensors) + siteText(own);
}

std::string exchangeCalls(collectives::KeyValue& store, int rank, int size, std::uint64_t number,
                          const std::string& own) {
  const auto keys =
      collectives::topicKeys("called/" + std::to_string(number), collectives::allRanks(size));
  std::map<std::string, std::vector<int>> ranks_by_text{{own, {rank}}};
  const auto deadline = collectives::Deadline::clock::now() + kPatience;
  if (!store.set(keys[static_cast<std::size_t>(rank)], own)) {
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      const auto text = store.get(keys[static_cast<std::size_t>(other)], deadline);
      if (text.ok()) ranks_by_text[text.value()].push_back(other);
    }
  }
  std::map<std::vector<int>, std::string> text_by_ranks;  // the lowest rank first
  for (auto& [text, ranks] : ranks_by_text) {
    std::ranges::sort(ranks);
    text_by_ranks[ranks] = text;
  }
  std::string all;
  for (const auto& [ranks, text] : text_by_ranks)
    all += (all.empty() ? "" : "; ") + collectives::ranksAsText(ranks) + ": " + text;
  return all;
}

}  // namespace weft::process_group
