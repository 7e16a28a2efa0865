// Exercise: runs operations on a group and compares each result with the model. Every rank knows
// what the others put in. Sequences are random, the same on all ranks of a seed.
#pragma once

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "tests/c10d_plugin/shm/model.h"
#include "tests/c10d_plugin/shm/ranks.h"

namespace weft::collectives::testing {

// Bytes to work on: ordinary memory, or some of the group's own.
class Placed {
 public:
  explicit Placed(Memory memory) : plain_(std::move(memory)), bytes_(plain_) {}
  Placed(transport::OwnedBuffer shared, const Memory& memory)
      : shared_(std::move(shared)), bytes_(shared_.data, memory.size()) {
    std::memcpy(shared_.data, memory.data(), memory.size());
  }
  Placed(Placed&&) = default;
  operator Bytes() const { return bytes_; }       // NOLINT(google-explicit-constructor)
  operator ConstBytes() const { return bytes_; }  // NOLINT(google-explicit-constructor)
  bool shared() const { return shared_.data != nullptr; }

 private:
  Memory plain_;
  transport::OwnedBuffer shared_;
  Bytes bytes_;
};

class Exercise {
 public:
  // How many of a rank's data it has the group allocate; 1: all that the group has room for. Each
  // rank draws for itself.
  void allocateShared(double share) {
    shared_ = share;
    own_random_.seed(seed_ * 31 + own());
  }
  // How many data lay in the group's memory.
  int placedShared() const { return placed_shared_; }

  Exercise(Collectives& group, std::uint64_t seed, milliseconds limit = seconds(60))
      : group_(group), random_(seed), seed_(seed), limit_(limit) {}

  // How many results were wrong, and operations failed.
  int failures() const { return failures_; }
  const Error& lastError() const { return last_error_; }
  std::uint64_t sequence() const { return sequence_; }

  Call call(Element element = Element::kBytes, Reduction reduction = Reduction::kSum) {
    return {in(limit_), sequence_++, element, reduction};
  }

  void allReduce(Element element, Reduction reduction, std::size_t count) {
    const std::vector<Memory> inputs = everybodys(element, count);
    const Placed data = place(inputs[own()]);
    if (done(group_.allReduce(call(element, reduction), data), "all_reduce")) {
      expect(element, data, reduceModel(element, reduction, inputs), "all_reduce");
    }
  }
  void reduce(Element element, Reduction reduction, std::size_t count, int root) {
    const std::vector<Memory> inputs = everybodys(element, count);
    const Placed data = place(inputs[own()]);
    if (done(group_.reduce(call(element, reduction), data, root), "reduce")) {
      expect(element, data,
             group_.rank() == root ? reduceModel(element, reduction, inputs) : inputs[own()],
             "reduce");
    }
  }
  void broadcast(std::size_t bytes, int root) {
    const std::vector<Memory> inputs = everybodys(Element::kBytes, bytes);
    const Placed data = place(inputs[own()]);
    if (done(group_.broadcast(call(), data, root), "broadcast")) {
      expect(Element::kBytes, data, inputs[static_cast<std::size_t>(root)], "broadcast");
    }
  }
  // Rank r has sizes[r] bytes.
  void allGather(const std::vector<std::size_t>& sizes, bool in_place) {
    const std::vector<Memory> inputs = uneven(sizes);
    std::vector<Memory> outputs = blank(sizes);
    if (in_place) outputs[own()] = inputs[own()];
    const Placed apart = place(inputs[own()]);
    const std::vector<Placed> out = place(outputs);
    const ConstBytes mine = in_place ? ConstBytes(out[own()]) : ConstBytes(apart);
    if (done(group_.allGather(call(), mine, spans(out)), "all_gather")) {
      for (std::size_t rank = 0; rank < size(); ++rank) {
        expect(Element::kBytes, out[rank], inputs[rank], "all_gather");
      }
    }
  }
  void gather(const std::vector<std::size_t>& sizes, int root) {
    const std::vector<Memory> inputs = uneven(sizes);
    std::vector<Memory> outputs = blank(sizes);
    if (group_.rank() != root) outputs.clear();
    const Placed mine = place(inputs[own()]);
    if (done(group_.gather(call(), mine, spans(outputs), root), "gather")) {
      for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
        expect(Element::kBytes, outputs[rank], inputs[rank], "gather");
      }
    }
  }
  void scatter(const std::vector<std::size_t>& sizes, int root) {
    const std::vector<Memory> inputs = uneven(sizes);
    Memory out(sizes[own()]);
    const std::vector<Placed> placed = place(inputs);
    std::vector<ConstBytes> parts(placed.begin(), placed.end());
    if (group_.rank() != root) parts.clear();
    if (done(group_.scatter(call(), parts, out, root), "scatter")) {
      expect(Element::kBytes, out, inputs[own()], "scatter");
    }
  }
  void reduceScatter(Element element, Reduction reduction, const std::vector<std::size_t>& counts,
                     bool in_place) {
    // inputs[rank][part]
    std::vector<std::vector<Memory>> inputs(size());
    const std::uint64_t salt = random_();
    for (std::size_t rank = 0; rank < size(); ++rank) {
      for (std::size_t part = 0; part < size(); ++part) {
        inputs[rank].push_back(
            fill(element, counts[part] * sizeOf(element), salt + rank * size() + part));
      }
    }
    std::vector<Memory> wanted;
    for (std::size_t rank = 0; rank < size(); ++rank)
      wanted.push_back(inputs[rank][own()]);
    const std::vector<Placed> mine = place(inputs[own()]);
    Memory apart(inputs[own()][own()].size());
    const Bytes out = in_place ? Bytes(mine[own()]) : Bytes(apart);
    const std::vector<ConstBytes> parts(mine.begin(), mine.end());
    if (done(group_.reduceScatter(call(element, reduction), parts, out), "reduce_scatter")) {
      expect(element, out, reduceModel(element, reduction, wanted), "reduce_scatter");
    }
  }
  // sizes[from][to]
  void allToAll(const std::vector<std::vector<std::size_t>>& sizes) {
    const std::uint64_t salt = random_();
    const auto message = [&](std::size_t from, std::size_t to) {
      return fill(Element::kBytes, sizes[from][to], salt + from * size() + to);
    };
    std::vector<Memory> inputs;
    std::vector<Memory> outputs;
    for (std::size_t rank = 0; rank < size(); ++rank) {
      inputs.push_back(message(own(), rank));
      outputs.emplace_back(sizes[rank][own()]);
    }
    const std::vector<Placed> placed = place(inputs);
    const std::vector<ConstBytes> parts(placed.begin(), placed.end());
    if (done(group_.allToAll(call(), parts, spans(outputs)), "all_to_all")) {
      for (std::size_t rank = 0; rank < size(); ++rank) {
        expect(Element::kBytes, outputs[rank], message(rank, own()), "all_to_all");
      }
    }
  }
  void barrier() { done(group_.barrier(call()), "barrier"); }

  // One operation of random kind and shape, no larger than about `most` bytes per rank.
  void anything(std::size_t most) {
    const int root = static_cast<int>(random_() % size());
    const Element element = allElements()[random_() % allElements().size()];
    Reduction reduction = Reduction::kSum;
    do {
      reduction = allReductions()[random_() % allReductions().size()];
    } while (!canReduce(element, reduction));
    const bool in_place = random_() % 2 == 0;
    switch (random_() % 9) {
      case 0:
        return barrier();
      case 1:
        return broadcast(someSize(most), root);
      case 2:
        return reduce(element, reduction, someSize(most) / sizeOf(element), root);
      case 3:
        return allGather(someSizes(most), in_place);
      case 4:
        return gather(someSizes(most), root);
      case 5:
        return scatter(someSizes(most), root);
      case 6: {
        std::vector<std::size_t> counts = someSizes(most);
        for (std::size_t& count : counts)
          count /= sizeOf(element);
        return reduceScatter(element, reduction, counts, in_place);
      }
      case 7: {
        std::vector<std::vector<std::size_t>> sizes;
        for (std::size_t rank = 0; rank < size(); ++rank)
          sizes.push_back(someSizes(most));
        return allToAll(sizes);
      }
      default:
        return allReduce(element, reduction, someSize(most) / sizeOf(element));
    }
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(group_.size()); }
  std::size_t own() const { return static_cast<std::size_t>(group_.rank()); }

  // Small as often as large.
  std::size_t someSize(std::size_t most) {
    const std::size_t limit = most >> (random_() % 12);
    return random_() % (limit + 1);
  }
  std::vector<std::size_t> someSizes(std::size_t most) {
    const bool equal = random_() % 2 == 0;
    std::vector<std::size_t> sizes(size(), someSize(most / size()));
    if (!equal) {
      for (std::size_t& each : sizes)
        each = random_() % 3 == 0 ? 0 : someSize(most / size());
    }
    return sizes;
  }
  std::vector<Memory> everybodys(Element element, std::size_t count) {
    return uneven(std::vector<std::size_t>(size(), count * sizeOf(element)), element);
  }
  std::vector<Memory> uneven(const std::vector<std::size_t>& sizes,
                             Element element = Element::kBytes) {
    std::vector<Memory> all;
    const std::uint64_t salt = random_();
    for (std::size_t rank = 0; rank < size(); ++rank) {
      all.push_back(fill(element, sizes[rank], salt + rank));
    }
    return all;
  }
  static std::vector<Memory> blank(const std::vector<std::size_t>& sizes) {
    std::vector<Memory> all;
    for (const std::size_t bytes : sizes)
      all.emplace_back(bytes, std::byte{0xEE});
    return all;
  }
  template <typename Data>
  static std::vector<Bytes> spans(Data& memory) {
    return std::vector<Bytes>(memory.begin(), memory.end());
  }

  Placed place(const Memory& memory) {
    if (std::uniform_real_distribution<double>(0, 1)(own_random_) < shared_) {
      transport::OwnedBuffer shared = group_.allocate(memory.size());
      if (shared.data != nullptr) {
        ++placed_shared_;
        return {std::move(shared), memory};
      }
    }
    return Placed(memory);
  }
  std::vector<Placed> place(const std::vector<Memory>& all) {
    std::vector<Placed> placed;
    placed.reserve(all.size());
    for (const Memory& one : all)
      placed.push_back(place(one));
    return placed;
  }

  bool done(const Error& error, const char* what) {
    if (!error) return true;
    ++failures_;
    last_error_ = error;
    complain(what, error.text());
    return false;
  }
  void expect(Element element, ConstBytes got, const Memory& want, const char* what) {
    for (std::size_t at = 0; at < want.size(); at += sizeOf(element)) {
      if (load(element, got.data() + at) == load(element, want.data() + at)) continue;
      ++failures_;
      complain(what, std::string("wrong at byte ") + std::to_string(at) + " of " +
                         std::to_string(want.size()) + ", " + toString(element));
      return;
    }
  }
  void complain(const char* what, const std::string& why) const {
    if (failures_ > 5) return;
    std::fprintf(stderr, "seed %llu, rank %d of %d, operation %llu, %s: %s\n",
                 static_cast<unsigned long long>(seed_), group_.rank(), group_.size(),
                 static_cast<unsigned long long>(sequence_ - 1), what, why.c_str());
  }

  Collectives& group_;
  std::mt19937_64 random_;
  const std::uint64_t seed_;
  const milliseconds limit_;
  std::uint64_t sequence_ = 0;
  double shared_ = 0;
  std::mt19937_64 own_random_;
  int placed_shared_ = 0;
  int failures_ = 0;
  Error last_error_;
};

}  // namespace weft::collectives::testing
