// Calls of built-in operators: the same bytes and the same answers as torch's own.
#include "rpc_backend/serve/callback/builtin_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/library.h>

#include <filesystem>

#include "rpc_backend/serve/callback/script_service.h"

namespace weft::rpc {
namespace {

using torch::distributed::rpc::GloballyUniqueId;
using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;
using torch::distributed::rpc::ScriptCall;
using torch::distributed::rpc::ScriptRemoteCall;
using torch::jit::Operator;
using torch::jit::Stack;

std::shared_ptr<Operator> overload(const std::string& name, const std::string& overload) {
  for (const auto& op : torch::jit::getAllOperatorsFor(at::Symbol::fromQualString(name))) {
    if (op->schema().overload_name() == overload) return op;
  }
  return nullptr;
}

c10::intrusive_ptr<Message> message(std::vector<char> payload, std::vector<at::Tensor> tensors,
                                    MessageType type) {
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), type);
}

TEST(BuiltinCall, GoesOverTheWireAsTorchsOwn) {
  const Stack stack{at::ones({2, 3}), at::Scalar(2), at::Scalar(1)};
  for (int again = 0; again < 2; ++again) {  // found, then kept
    const auto op = overload("aten::add", "Scalar");
    ASSERT_NE(op, nullptr);
    const auto ours = encodeBuiltin(op, stack);
    const auto theirs = ScriptCall(op, Stack(stack)).toMessage();
    EXPECT_EQ(ours->type(), theirs->type());
    EXPECT_EQ(ours->payload(), theirs->payload());
    ASSERT_EQ(ours->tensors().size(), 1U);
    EXPECT_TRUE(ours->tensors()[0].is_same(stack[0].toTensor()));
  }
}

TEST(BuiltinCall, OfAnRRefGoesOverTheWireAsTorchsOwn) {
  const Stack stack{at::ones({2, 3}), at::Scalar(2), at::Scalar(1)};
  const auto op = overload("aten::add", "Scalar");
  ASSERT_NE(op, nullptr);
  const GloballyUniqueId value(1, 7);
  const GloballyUniqueId fork(1, 8);
  const auto ours = encodeRemoteBuiltin(op, stack, value, fork);
  const auto theirs = ScriptRemoteCall(op, Stack(stack), value, fork).toMessage();
  EXPECT_EQ(ours->type(), theirs->type());
  EXPECT_EQ(ours->payload(), theirs->payload());
  ASSERT_EQ(ours->tensors().size(), 1U);
  EXPECT_TRUE(ours->tensors()[0].is_same(stack[0].toTensor()));
}

TEST(BuiltinCall, IsServedAsTorchWould) {
  const at::Tensor a = at::arange(6).reshape({2, 3});
  for (int again = 0; again < 2; ++again) {
    const auto answer =
        serveBuiltin(*encodeBuiltin(overload("aten::add", "Tensor"), {a, a, at::Scalar(3)}),
                     RequestPolicy::kAny);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->type(), MessageType::SCRIPT_RET);
    const auto value = torch::jit::unpickle(answer->payload().data(), answer->payload().size(),
                                            nullptr, answer->tensors());
    EXPECT_TRUE(at::equal(value.toTensor(), a * 4));
  }
}

// torch must not be asked to run it again.
TEST(BuiltinCall, ThrowsWhatTheOperatorThrows) {
  const auto request =
      encodeBuiltin(overload("aten::add", "Tensor"), {at::ones({2}), at::ones({3}), at::Scalar(1)});
  EXPECT_THROW(serveBuiltin(*request, RequestPolicy::kAny), c10::Error);
}

TEST(BuiltinCall, RunsAnOperatorThatFailsOnce) {
  static int runs = 0;
  torch::Library library(torch::Library::FRAGMENT, "aten", std::nullopt, __FILE__, __LINE__);
  library.def("weft_test_fails(Tensor x) -> Tensor");
  library.impl("weft_test_fails", [](const at::Tensor& x) -> at::Tensor {
    ++runs;
    TORCH_CHECK(false, "the operator failed");
    return x;
  });
  const auto request = encodeBuiltin(overload("aten::weft_test_fails", ""), {at::ones({2})});
  try {
    serveBuiltin(*request, RequestPolicy::kAny);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_EQ(error.msg(), "the operator failed");
  }
  EXPECT_EQ(runs, 1);
}

// The way around torch must not be one around the policy.
TEST(BuiltinCall, LeavesToTorchWhatThePolicyRefuses) {
  const std::string file = ::testing::TempDir() + "builtin_call_test.created";
  std::filesystem::remove(file);
  const at::IValue none;
  const auto request =
      encodeBuiltin(overload("aten::from_file", ""), {file, true, 8, at::kByte, none, none, none});
  const auto harmless = encodeBuiltin(overload("aten::neg", ""), {at::ones({2})});
  for (const RequestPolicy policy : {RequestPolicy::kRegistered, RequestPolicy::kScript}) {
    EXPECT_EQ(serveBuiltin(*request, policy), nullptr);
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_NE(serveBuiltin(*harmless, policy), nullptr);
  }
  EXPECT_NE(serveBuiltin(*request, RequestPolicy::kAny), nullptr);
  EXPECT_TRUE(std::filesystem::remove(file));
}

// An operator takes its arguments off the stack without counting.
TEST(BuiltinCall, WithoutItsArgumentsIsRefused) {
  const at::Tensor x = at::ones({2});
  const auto zero = overload("aten::zero_", "");
  for (const Stack& stack : {Stack{}, Stack{x, x}}) {
    EXPECT_EQ(serveBuiltin(*encodeBuiltin(zero, stack), RequestPolicy::kAny), nullptr);
    try {
      checkOperator(RequestPolicy::kAny, ScriptCall(zero, Stack(stack)));
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_NE(error.msg().find("values for the arguments of aten::zero_"), std::string::npos)
          << error.msg();
    }
  }
  EXPECT_NO_THROW(checkOperator(RequestPolicy::kAny, ScriptCall(zero, Stack{x})));
  EXPECT_TRUE(x.equal(at::ones({2})));
}

TEST(BuiltinCall, LeavesToTorchWhatIsNoBuiltin) {
  const auto scripted =
      ScriptCall(c10::QualifiedName("__torch__.f"), Stack{at::IValue("torch.ops.aten.add")})
          .toMessage();
  EXPECT_EQ(serveBuiltin(*scripted, RequestPolicy::kAny), nullptr);
  const auto python =
      message(std::vector<char>(40, 'x'), std::vector<at::Tensor>(), MessageType::PYTHON_CALL);
  EXPECT_EQ(serveBuiltin(*python, RequestPolicy::kAny), nullptr);
}

TEST(BuiltinCall, LeavesToTorchWhatIsMalformed) {
  const auto whole = encodeBuiltin(overload("aten::neg", ""), {at::ones({2})});
  ASSERT_NE(serveBuiltin(*whole, RequestPolicy::kAny), nullptr);
  for (std::size_t cut = 1; cut < whole->payload().size(); cut += 7) {
    std::vector<char> payload(whole->payload().begin(),
                              whole->payload().end() - static_cast<std::ptrdiff_t>(cut));
    const auto request = message(std::move(payload), {at::ones({2})}, MessageType::SCRIPT_CALL);
    EXPECT_EQ(serveBuiltin(*request, RequestPolicy::kAny), nullptr);
  }
}

}  // namespace
}  // namespace weft::rpc
