// Gloo's algorithms over the mailbox, beside the model; and in a program that links libtorch_cpu,
// which has another Gloo of the same names.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "c10d_plugin/net/hosts/gloo_loader.h"
#include "tests/c10d_plugin/net/collectives_model.h"
#include "tests/c10d_plugin/net/letters.h"

#include "tests/support/waiting.h"

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Collectives> makeGloo(const std::shared_ptr<Mailbox>& box) {
  std::vector<int> members;
  for (int r = 0; r < box->size(); ++r)
    members.push_back(r);
  setGlooLibrary("c10d_plugin/net/gloo/libweft_gloo.so");
  auto made = makeGlooCollectives(box, members, 3);
  if (!made.ok()) throw std::runtime_error(made.error().text());
  return std::move(made).value();
}

class GlooRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, GlooRanks, ::testing::Values(2, 3, 4, 5));

TEST_P(GlooRanks, DoWhatTheModelDoes) {
  const int size = GetParam();
  if (kSanitized && size != 3) GTEST_SKIP() << "three ranks are enough for a sanitizer";
  runRanks(size, [size](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box =
        joinAs(rank, size, store, [](MailboxOptions& options) { options.unix_socket = false; });
    const auto collectives = makeGloo(box);
    Checker checker(*collectives);
    checker.everything();
    // Beyond what goes by messages.
    checker.allReduce(Element::kFloat32, Reduction::kSum, 1'500'001);
    checker.allReduce(Element::kBfloat16, Reduction::kAverage, 2'500'001);
    checker.allReduce(Element::kFloat16, Reduction::kAverage, 2'500'001);  // in one place
    checker.allReduce(Element::kComplex128, Reduction::kProduct, 300'001);
  });
}

TEST(Gloo, AnAverageIsRightWhereTheSumDoesNotFitTheType) {
  runRanks(2, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 2, store);
    const auto collectives = makeGloo(box);
    constexpr std::uint16_t kLargestHalf = 0x7BFF;
    std::uint64_t sequence = 0;
    for (const Element element : {Element::kInt16, Element::kFloat16}) {
      const std::uint16_t value = element == Element::kInt16 ? 0x7FFF : kLargestHalf;
      std::vector<std::uint16_t> data(2'500'001, value);
      const Error error = collectives->allReduce({soon(), sequence++, element, Reduction::kAverage},
                                                 std::as_writable_bytes(std::span(data)));
      EXPECT_FALSE(error) << error.text();
      EXPECT_TRUE(std::ranges::all_of(data, [&](auto each) { return each == value; }))
          << toString(element) << " " << data.front();
    }
    meet(store, rank, 2, "end");
  });
}

#if WEFT_WITH_TORCH
TEST(Gloo, IsNotTorchs) {
  // Torch's Gloo is in this program, under the names that libweft_gloo.so uses.
  const char* const name = "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE";
  void* const torchs = ::dlsym(RTLD_DEFAULT, name);
  ASSERT_NE(torchs, nullptr);
  Dl_info info{};
  ASSERT_NE(::dladdr(torchs, &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libtorch_cpu"), std::string::npos) << info.dli_fname;
}
#endif

TEST(Gloo, ADeadRankIsNamedAndNothingHangs) {
  runRanks(3,
           [](int rank, KeyValue& store) {
             const std::shared_ptr<EndpointMailbox> box = joinAs(
                 rank, 3, store, [](MailboxOptions& options) { options.unix_socket = false; });
             const auto collectives = makeGloo(box);
             std::vector<std::byte> data(20'000'000);
             Call call{soon(), 0, Element::kFloat32, Reduction::kSum};
             EXPECT_FALSE(collectives->barrier(call));
             if (rank == 2) {
               std::thread([] {
                 takes(milliseconds(30));
                 die();
               }).detach();
             }
             Error error;
             while (!error) {
               ++call.sequence;
               error = collectives->allReduce(call, data);
             }
             if (rank == 2) awaitDeath();
             EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.text();
             EXPECT_TRUE(names(error, "rank 2")) << error.text();
             meet(store, rank, 2, "end");
           },
           {2});
}

TEST(Gloo, AnotherOperationOrARankThatDoesNotComeIsNamed) {
  runRanks(3, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 3, store);
    const auto collectives = makeGloo(box);
    std::vector<std::byte> data(8'000'000);
    const Call call{soon(), 0, rank == 1 ? Element::kInt32 : Element::kFloat32, Reduction::kSum};
    const Error error = collectives->allReduce(call, data);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.text();
    EXPECT_TRUE(names(error, "int32") && names(error, "float32")) << error.text();
    meet(store, rank, 3, "end");
  });
  runRanks(3, [](int rank, KeyValue& store) {
    const std::shared_ptr<EndpointMailbox> box = joinAs(rank, 3, store);
    const auto collectives = makeGloo(box);
    meet(store, rank, 3, "joined");
    if (rank != 1) {
      std::vector<std::byte> data(8'000'000);
      const Error error = collectives->allReduce(
          {soon(milliseconds(2000)), 0, Element::kFloat32, Reduction::kSum}, data);
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.text();
      // Around a ring each rank knows only that the one before it sends nothing.
      EXPECT_TRUE(names(error, "rank 1") || names(error, "rank 0")) << error.text();
    }
    meet(store, rank, 3, "end");
  });
}

}  // namespace
}  // namespace weft::collectives
