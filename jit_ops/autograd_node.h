// Autograd's nodes are held by std::shared_ptr up to torch 2.14 and by c10::intrusive_ptr from then
// on (pipe/torch_compat.h has the same for its layer).
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace weft::ops {

using NodePtr = decltype(torch::autograd::Edge::function);

// Keeps the node's type; converts to NodePtr.
template <typename NodeType, typename... Args>
auto makeNode(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    // Found by its argument: newer versions have no such function, and this branch is none of
    // theirs.
    return std::shared_ptr<NodeType>(new NodeType(std::forward<Args>(args)...),
                                     [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
  }
}

}  // namespace weft::ops
