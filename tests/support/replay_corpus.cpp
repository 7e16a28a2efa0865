// Runs a fuzzer's target over its committed corpus, without a fuzzer: each input is a test.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

class Replay : public ::testing::Test {
 public:
  explicit Replay(std::filesystem::path input) : input_(std::move(input)) {}
  void TestBody() override {
    std::ifstream file(input_, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    ASSERT_FALSE(file.bad()) << input_;
    // A fault ends the process.
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
        0);
  }

 private:
  const std::filesystem::path input_;
};

// Before main(), which runs what is registered.
const bool registered = [] {
  const char* const folder = std::getenv("WEFT_CORPUS");
  if (folder == nullptr) throw std::runtime_error("WEFT_CORPUS names no folder");
  const std::filesystem::path corpus(folder);
  for (const auto& input : std::filesystem::directory_iterator(corpus)) {
    ::testing::RegisterTest(
        corpus.filename().c_str(), input.path().filename().c_str(), nullptr, nullptr, __FILE__,
        __LINE__, [path = input.path()]() -> ::testing::Test* { return new Replay(path); });
  }
  return true;
}();

}  // namespace
