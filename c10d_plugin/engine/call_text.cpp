#include "c10d_plugin/engine/call_text.h"

#include <c10/core/ScalarType.h>

#include <string_view>
#include <vector>

#include "c10d_plugin/core/group_text.h"

namespace weft::process_group {

namespace {

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

// Between torch's functions and the program's: what decorators and context managers are made of.
bool isWrapper(std::string_view file) {
  return file.ends_with("/contextlib.py") || file.ends_with("/functools.py") ||
         file.ends_with("/typing_extensions.py");
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
    if (!file.ends_with(".py") || is_torchs || isWrapper(file) ||
        file.find("/weft/_torch/") != std::string::npos) {
      continue;
    }
    return " at " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(frame.lineno);
  }
  return {};
}

std::string tensorsText(const OpRecord& own) {
  return shapesText(own.inputs.empty() ? own.outputs : own.inputs);
}

}  // namespace

std::string argumentsText(const OpRecord& own) {
  const std::string tensors = tensorsText(own);
  return (tensors.empty() ? "no tensors" : tensors) + siteText(own);
}

std::string callText(const OpRecord& own) {
  const std::string_view title = own.title;
  std::string text(title.substr(title.find(':') + 1));
  if (const std::string tensors = tensorsText(own); !tensors.empty()) text += " " + tensors;
  if (!own.group_name.empty()) text += " in " + collectives::groupText(own.group_name);
  return text;
}

}  // namespace weft::process_group
