// The registry of published names, and what can be published.
#include "jit_ops/serve/published.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace weft::ops {
namespace {

std::shared_ptr<Servable> adder(std::int64_t add) {
  return servable("add(int x) -> int",
                  [add](Values args) { return at::IValue(args.at(0).toInt() + add); });
}

std::string problem(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

std::int64_t runNewest(const std::string& name, std::int64_t version = kNewest) {
  const Found found = mustFindPublished(name, version);
  return found.servable->run(*found.servable->find(kForward), {1}, {})->value().toInt();
}

TEST(Published, VersionsLiveSideBySideAndNeverComeBack) {
  EXPECT_EQ(publish("a.versions", adder(10)), 1);
  EXPECT_EQ(publish("a.versions", adder(20)), 2);
  EXPECT_EQ(runNewest("a.versions"), 21);
  EXPECT_EQ(runNewest("a.versions", 1), 11);
  unpublish("a.versions", 2);
  EXPECT_EQ(runNewest("a.versions"), 11);
  EXPECT_EQ(publish("a.versions", adder(30)), 3);
  unpublish("a.versions");
  EXPECT_EQ(findPublished("a.versions", kNewest).servable, nullptr);
  EXPECT_EQ(publish("a.versions", adder(40)), 4);
  unpublish("a.versions");
}

TEST(Published, AVersionThatIsGivenIsNoOldOne) {
  EXPECT_EQ(publish("a.given", adder(1)), 1);
  EXPECT_EQ(publish("a.given", adder(2), 4), 4);
  EXPECT_EQ(publish("a.given", adder(3), 2), 2);
  unpublish("a.given", 2);
  EXPECT_NE(problem([] { publish("a.given", adder(4), 2); }).find("is ever given again"),
            std::string::npos);
  EXPECT_EQ(publish("a.given", adder(5), 3), 3);
  unpublish("a.given");
  for (const std::int64_t old : {1, 4})
    EXPECT_NE(problem([&] { publish("a.given", adder(6), old); }), "");
  EXPECT_EQ(publish("a.given", adder(7), 6), 6);
  unpublish("a.given");
}

TEST(Published, NoVersionComesAfterTheLast) {
  constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(publish("a.last", adder(1), kLast), kLast);
  EXPECT_NE(problem([] { publish("a.last", adder(2)); }).find("there is no next one"),
            std::string::npos);
  EXPECT_EQ(publish("a.last", adder(3), 5), 5);
  unpublish("a.last");
}

TEST(Published, BadNamesAndVersionsChangeNothing) {
  const std::size_t before = published().size();
  for (const char* name : {"", "a/b", "a::b", "a@1", "a b"})
    EXPECT_NE(problem([&] { publish(name, adder(1)); }).find("cannot be a published name"),
              std::string::npos)
        << name;
  EXPECT_NE(problem([&] { publish("x", adder(1), -1); }), "");
  EXPECT_NE(problem([&] { publish("x", nullptr); }), "");
  EXPECT_EQ(published().size(), before);
  EXPECT_EQ(publish("x", adder(1), 7), 7);
  EXPECT_NE(problem([&] { publish("x", adder(1), 7); }).find("published already"),
            std::string::npos);
  unpublish("x");
}

TEST(Published, AnAbsentNameSaysWhatThereIs) {
  publish("there", adder(1));
  const std::string text = problem([] { mustFindPublished("ther", kNewest); });
  EXPECT_NE(text.find("'ther' is not published here; published are: there version 1"),
            std::string::npos)
      << text;
  EXPECT_NE(problem([] { mustFindPublished("there", 5); }).find("'there' version 5"),
            std::string::npos);
  EXPECT_NE(problem([] { unpublish("nowhere"); }), "");
  unpublish("there");
}

TEST(Published, ListsSignatures) {
  torch::jit::Module module("Listed");
  module.define(
      "def forward(self, x: Tensor, n: int = 2) -> Tensor:\n  return x * n\n"
      "def twice(self, x: Tensor) -> Tensor:\n  return self.forward(x, 4)\n");
  publish("listed", servable(module));
  bool seen = false;
  for (const PublishedInfo& info : published()) {
    if (info.name != "listed") continue;
    seen = true;
    ASSERT_EQ(info.methods.size(), 2U);
    EXPECT_EQ(info.methods[0], "forward(Tensor x, int n=2) -> Tensor");
  }
  EXPECT_TRUE(seen);
  unpublish("listed");
}

// Readers and writers at once: a call ends with the version it began with.
TEST(Published, ManyThreadsPublishAndCall) {
  publish("busy", adder(0));
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop)
        wrong += runNewest("busy") < 1 ? 1 : 0;
    });
  }
  for (int i = 1; i < 200; ++i) {
    const std::int64_t version = publish("busy", adder(i));
    unpublish("busy", version - 1);
  }
  stop = true;
  for (auto& reader : readers)
    reader.join();
  EXPECT_EQ(wrong, 0);
  unpublish("busy");
}

TEST(Servable, NoGradLeavesNoGraph) {
  torch::jit::Module module("Weighted");
  module.register_parameter("w", at::ones({2}).requires_grad_(), false);
  module.define("def forward(self, x: Tensor) -> Tensor:\n  return x * self.w\n");
  const auto run = [&](bool no_grad) {
    const auto made = servable(module, no_grad);
    return made->run(*made->find(kForward), {at::ones({2})}, {})->value().toTensor();
  };
  EXPECT_TRUE(run(false).requires_grad());
  EXPECT_FALSE(run(true).requires_grad());
}

}  // namespace
}  // namespace weft::ops
