#include "rpc_backend/serve/sendable.h"

#include <ATen/core/jit_type.h>

#include <algorithm>

namespace weft::rpc {
namespace {

bool mayHoldObjects(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::AnyType:
    case c10::TypeKind::ClassType:
    case c10::TypeKind::EnumType:
    case c10::TypeKind::InterfaceType:
      return true;
    default:
      return std::ranges::any_of(type->containedTypes(), mayHoldObjects);
  }
}

}  // namespace

bool holdsObject(const at::IValue& value) {
  bool found = false;
  value.visit([&](const at::IValue& part) {
    found = found || part.isObject() || part.isEnum();
    return found || (part.isList() && !mayHoldObjects(part.toList().elementType()));
  });
  return found;
}

}  // namespace weft::rpc
