// torch.classes.weft.Binding: "what is published as NAME at WORKER", as a value that a TorchScript
// module can hold. It is four fields and no connection: making, saving and loading one asks nobody,
// so that it can be loaded before a group is joined.
#pragma once

#include <torch/custom_class.h>

#include <string>

#include "jit_ops/call/calls.h"

namespace weft::ops {

class WEFT_API Binding : public torch::CustomClassHolder {
 public:
  // `version` kNewest: whatever is newest at each call.
  Binding(std::string worker, std::string name, std::int64_t version = kNewest,
          double timeout = kGroupsTimeout);
  // "worker/name" or "worker/name@version". Throws c10::Error that shows the right form.
  static c10::intrusive_ptr<Binding> parse(const std::string& text);

  at::IValue call(const std::string& method, const c10::List<at::IValue>& args) const;
  std::string text() const;  // as parse() takes it

  std::string worker;
  std::string name;
  std::int64_t version;
  double timeout;

 private:
  Call toCall(const std::string& method, const c10::List<at::IValue>& args) const;
};

// Registers the class with torch, once.
void registerBinding();

}  // namespace weft::ops
