#include "pipe/scripted/script_values.h"

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "pipe/data/memory.h"

namespace weft::pipe {

namespace {

class Changer {
 public:
  explicit Changer(const std::function<at::Tensor(const at::Tensor&)>& change) : change_(change) {}

  at::IValue operator()(const at::IValue& value) {
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isTuple()) return tuple(value);
    if (value.isList()) {
      c10::impl::GenericList made(value.toList().elementType());
      for (const at::IValue& part : value.toListRef())
        made.push_back((*this)(part));
      return made;
    }
    if (value.isGenericDict()) {
      const auto dict = value.toGenericDict();
      c10::impl::GenericDict made(dict.keyType(), dict.valueType());
      for (const auto& entry : dict)
        made.insert(entry.key(), (*this)(entry.value()));
      return made;
    }
    return value;
  }

 private:
  at::Tensor tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const auto [at, is_new] = made_.try_emplace(tensor.unsafeGetTensorImpl());
    if (is_new) at->second = change_(tensor);
    return at->second;
  }

  at::IValue tuple(const at::IValue& value) {
    Values parts;
    for (const at::IValue& part : value.toTupleRef().elements())
      parts.push_back((*this)(part));
    const auto type = value.toTupleRef().type<c10::TupleType>();
    if (type->schema() == nullptr) return c10::ivalue::Tuple::create(std::move(parts));
    return c10::ivalue::Tuple::createNamed(std::move(parts), type);
  }

  const std::function<at::Tensor(const at::Tensor&)>& change_;
  std::unordered_map<const at::TensorImpl*, at::Tensor> made_;
};

at::IValue listOf(const Values& values) {
  c10::impl::GenericList made(c10::AnyType::get());
  for (const at::IValue& value : values)
    made.push_back(value);
  return made;
}

// Tensors joined along dimension 0, other values as a list.
at::IValue joinedColumn(const Values& parts) {
  if (!parts.at(0).isTensor()) return listOf(parts);
  Tensors tensors;
  for (const at::IValue& part : parts)
    tensors.push_back(part.toTensor());
  TORCH_CHECK_VALUE(std::ranges::all_of(tensors, [](const auto& one) { return one.dim() > 0; }),
                    "outputs of micro-batches are joined along dimension 0, and one has no "
                    "dimension: let the last stage give it one, or give a loss to pipe.step");
  return at::cat(tensors);
}

// Those in a tuple, a list or a dictionary, in order.
Values partsOf(const at::IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  if (value.isList()) return value.toListRef().vec();
  Values parts;
  for (const auto& entry : value.toGenericDict())
    parts.push_back(entry.value());
  return parts;
}

at::IValue keysOf(const at::IValue& dictionary) {
  Values keys;
  for (const auto& entry : dictionary.toGenericDict())
    keys.push_back(entry.key());
  return listOf(keys);
}

// Joins the elements at each place of tuples, lists or dictionaries.
Values joinedColumns(const Values& values) {
  std::vector<Values> columns(partsOf(values.at(0)).size());
  for (const at::IValue& value : values) {
    const Values parts = partsOf(value);
    TORCH_CHECK_TYPE(parts.size() == columns.size(),
                     "micro-batches have different outputs: one has ", columns.size(),
                     " values, another ", parts.size());
    for (std::size_t at = 0; at < parts.size(); ++at)
      columns[at].push_back(parts[at]);
  }
  Values made;
  for (const Values& column : columns)
    made.push_back(joinedColumn(column));
  return made;
}

at::IValue joinedDictionaries(const Values& values) {
  const auto first = values.at(0).toGenericDict();
  const at::IValue keys = keysOf(first);
  for (const at::IValue& value : values)
    TORCH_CHECK_TYPE(keysOf(value) == keys,
                     "micro-batches have different outputs: one has the keys ", keys, ", another ",
                     keysOf(value));
  c10::impl::GenericDict made(first.keyType(), c10::AnyType::get());
  const Values columns = joinedColumns(values);
  for (std::size_t at = 0; at < columns.size(); ++at)
    made.insert(keys.toListRef()[at], columns[at]);
  return made;
}

// The tensors of a tuple or a list that has only tensors, each once; nothing for another value.
std::optional<Tensors> differentTensors(const at::IValue& value) {
  if (!value.isTuple() && !value.isList()) return std::nullopt;
  const Values parts = partsOf(value);
  Tensors tensors = tensorsOf(parts);
  const bool only = std::ranges::all_of(parts, &at::IValue::isTensor);
  return only && tensors.size() == parts.size() ? std::optional(std::move(tensors)) : std::nullopt;
}

PythonValues& mustHavePython(PythonValues* python) {
  TORCH_CHECK(python != nullptr,
              "a value between stages needs Python, which this worker does not have: let stages "
              "return a tensor, or a tuple or a list of different tensors");
  return *python;
}

}  // namespace

Tensors tensorsOf(const Values& values) {
  Tensors found;
  std::unordered_set<const at::TensorImpl*> seen;
  const auto look = [&](const at::IValue& value) {
    if (value.isTensor() && value.toTensor().defined() &&
        seen.insert(value.toTensor().unsafeGetTensorImpl()).second) {
      found.push_back(value.toTensor());
    }
    return value.isObject() || value.isPyObject();  // which are not looked into
  };
  for (const at::IValue& value : values)
    value.visit(look);
  return found;
}

Tensors thatWantGradients(const Tensors& tensors) {
  Tensors found;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.requires_grad()) found.push_back(tensor);
  }
  return found;
}

at::IValue withTensors(const at::IValue& value,
                       const std::function<at::Tensor(const at::Tensor&)>& change) {
  return Changer(change)(value);
}

at::IValue cut(const at::IValue& value) {
  return withTensors(value, [](const at::Tensor& tensor) {
    return tensor.detach().requires_grad_(tensor.requires_grad());
  });
}

at::IValue onHost(const at::IValue& value) {
  if (value.isTensor() && value.toTensor().is_cpu()) return value;
  return withTensors(value, [](const at::Tensor& tensor) {
    return tensor.is_cpu() ? tensor : tensor.detach().cpu().requires_grad_(tensor.requires_grad());
  });
}

Values asArguments(const at::IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  return {value};
}

at::IValue joined(const Values& parts) {
  const at::IValue& first = parts.at(0);
  if (!first.isTuple() && !first.isList() && !first.isGenericDict()) return joinedColumn(parts);
  if (first.isGenericDict()) return joinedDictionaries(parts);
  Values columns = joinedColumns(parts);
  if (first.isList()) return listOf(columns);
  const auto type = first.toTupleRef().type<c10::TupleType>();
  if (type->schema() == nullptr) return c10::ivalue::Tuple::create(std::move(columns));
  return c10::ivalue::Tuple::createNamed(std::move(columns), type);
}

Parcel pack(const at::IValue& value, PythonValues* python) {
  if (value.isTensor()) return {{}, {value.toTensor()}};
  auto tensors = differentTensors(value);
  if (!tensors) return mustHavePython(python).pack(value);
  std::string how(1, value.isTuple() ? layout::kTuple : layout::kList);
  if (shareStorage(*tensors)) how.insert(how.begin(), layout::kLostSharing);
  return {std::move(how), std::move(*tensors)};
}

StageArguments unpack(Parcel parcel, const c10::FunctionSchema& schema, PythonValues* python) {
  std::string_view how = parcel.layout;
  const bool lost = !how.empty() && how[0] == layout::kLostSharing;
  if (lost) how.remove_prefix(1);
  const auto is = [&](char kind) { return how.size() == 1 && how[0] == kind; };
  if (how.empty() && parcel.tensors.size() == 1) return {{parcel.tensors[0]}, lost};
  if (is(layout::kTuple)) return {{parcel.tensors.begin(), parcel.tensors.end()}, lost};
  if (is(layout::kList)) return {{c10::List<at::Tensor>(parcel.tensors)}, lost};
  parcel.layout = std::string(how);
  return {mustHavePython(python).unpack(parcel, schema), lost};
}

Parcel packGradients(const Tensors& gradients) {
  Parcel parcel{{layout::kList}, {}};
  for (const at::Tensor& gradient : gradients) {
    parcel.layout.push_back(gradient.defined() ? 1 : 0);
    if (gradient.defined()) parcel.tensors.push_back(gradient);
  }
  if (parcel.tensors.size() == gradients.size()) parcel.layout.resize(1);
  return parcel;
}

Tensors unpackGradients(Parcel parcel, PythonValues* python) {
  const std::string& how = parcel.layout;
  if (how.empty() || how[0] != layout::kList) return mustHavePython(python).unpackGradients(parcel);
  if (how.size() == 1) return std::move(parcel.tensors);
  Tensors gradients;
  auto next = parcel.tensors.begin();
  for (std::size_t at = 1; at < how.size(); ++at) {
    const bool is_there = how[at] != 0;
    TORCH_CHECK(!is_there || next != parcel.tensors.end(),
                "the delivery is malformed; install the same Weft on all workers");
    gradients.push_back(is_there ? std::move(*next++) : at::Tensor());
  }
  return gradients;
}

}  // namespace weft::pipe
