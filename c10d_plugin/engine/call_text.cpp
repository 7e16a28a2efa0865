#include "c10d_plugin/engine/call_text.h"

#include <c10/core/ScalarType.h>

#include <string_view>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"

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

std::string tensorsText(const OpRecord& own) {
  return shapesText(own.inputs.empty() ? own.outputs : own.inputs);
}

}  // namespace

std::string argumentsText(const OpRecord& own) {
  const std::string tensors = tensorsText(own);
  return (tensors.empty() ? "no tensors" : tensors) + (own.site.empty() ? "" : " at " + own.site);
}

std::string callText(const OpRecord& own) {
  const std::string_view title = own.title;
  std::string text(title.substr(title.find(':') + 1));
  if (const std::string tensors = tensorsText(own); !tensors.empty()) text += " " + tensors;
  if (!own.group_name.empty()) text += " in " + collectives::groupText(own.group_name);
  return text;
}

}  // namespace weft::process_group
