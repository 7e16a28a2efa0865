// How fast the collectives of one host are, without Python and torch: the least time of many
// calls, beside what a memcpy of as much takes in the same process.
//
//   shm_bench [RANKS [BUFFER_KIB [SMALL_KIB [OPERATION]]]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/c10d_plugin/shm/ranks.h"

namespace weft::collectives::testing {
namespace {

struct Timing {
  double least = 1e9;
  double median = 0;
};

template <typename F>
Timing timed(std::size_t bytes, F&& once) {
  const int repeats = bytes >= (64U << 20) ? 8 : bytes >= (4U << 20) ? 30 : 300;
  for (int i = 0; i < 3; ++i)
    once();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto began = Clock::now();
    once();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

class Bench {
 public:
  explicit Bench(Collectives& group) : group_(group), sequence_(0) {}

  int run(const std::string& only) {
    for (const std::size_t bytes :
         {std::size_t{8}, std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{256} << 10,
          std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{128} << 20}) {
      measure(bytes, only);
    }
    return 0;
  }

 private:
  Call call(Element element = Element::kFloat32) {
    return {in(seconds(60)), sequence_++, element, Reduction::kSum};
  }
  void check(const Error& error) {
    if (!error) return;
    std::fprintf(stderr, "rank %d: %s\n", group_.rank(), error.text().c_str());
    std::exit(1);
  }
  void report(const char* name, std::size_t bytes, const Timing& time, double copy) {
    if (group_.rank() != 0) return;
    std::printf("%-16s %10zu B  least %10.1f us  median %10.1f us  %5.2f memcpy\n", name, bytes,
                time.least, time.median, time.least / copy);
  }

  void measure(std::size_t bytes, const std::string& only) {
    const auto ranks = static_cast<std::size_t>(group_.size());
    std::vector<std::byte> data(bytes);
    std::vector<std::byte> other(bytes);
    const double copy =
        timed(bytes, [&] { std::memcpy(other.data(), data.data(), bytes); }).least + 0.01;
    const auto measured = [&](const char* name, auto&& operation) {
      if (!only.empty() && only != name) return;
      check(group_.barrier(call()));
      report(name, bytes, timed(bytes, [&] { check(operation()); }), copy);
    };
    if (bytes == 8) measured("barrier", [&] { return group_.barrier(call()); });
    measured("all_reduce", [&] { return group_.allReduce(call(), data); });
    measured("all_reduce_bf16", [&] { return group_.allReduce(call(Element::kBfloat16), data); });
    if (const transport::OwnedBuffer shared = group_.allocate(bytes); shared.data != nullptr) {
      const Bytes heap(shared.data, bytes);
      std::memset(heap.data(), 0, bytes);
      measured("all_reduce_heap", [&] { return group_.allReduce(call(), heap); });
      measured("reduce_heap", [&] { return group_.reduce(call(), heap, 0); });
    }
    measured("reduce", [&] { return group_.reduce(call(), data, 0); });
    measured("broadcast", [&] { return group_.broadcast(call(), data, 0); });
    // Of `bytes` in all.
    const std::size_t part = bytes / ranks / 4 * 4;
    if (part == 0) return;
    std::vector<ConstBytes> parts;
    std::vector<Bytes> into;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      parts.emplace_back(data.data() + rank * part, part);
      into.emplace_back(other.data() + rank * part, part);
    }
    const Bytes own = into[static_cast<std::size_t>(group_.rank())];
    measured("reduce_scatter", [&] { return group_.reduceScatter(call(), parts, own); });
    measured("all_gather", [&] { return group_.allGather(call(), own, into); });
    measured("all_to_all", [&] { return group_.allToAll(call(), parts, into); });
  }

  Collectives& group_;
  std::uint64_t sequence_;
};

}  // namespace
}  // namespace weft::collectives::testing

int main(int argc, char** argv) {
  using namespace weft::collectives::testing;
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  weft::collectives::ShmOptions options;
  if (argc > 2) options.buffer_bytes = static_cast<std::size_t>(std::atoi(argv[2])) << 10;
  if (argc > 3) options.small_bytes = static_cast<std::size_t>(std::atoi(argv[3])) << 10;
  const std::string only = argc > 4 ? argv[4] : "";
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, ranks, options,
             [&](weft::collectives::Collectives& group) { return Bench(group).run(only); });
  int status = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    status |= children.wait(static_cast<std::size_t>(rank), seconds(300));
  }
  return status;
}
