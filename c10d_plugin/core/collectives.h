// Collectives: what the ranks of a group do together, on raw memory. Knows nothing of torch.
//
// Several implementations stand behind it: shared memory (one host), messages (any hosts, simple),
// Gloo's algorithms (between hosts), and a hierarchy of the first and the last.
//
// Every rank calls the same operations in the same order, as with any process group. Call carries
// what must be equal on all ranks; an implementation that sees a difference fails the operation
// on all of them with an error that names the rank and both sides, before any result is written
// where it can.
//
// Threads: one operation at a time; the caller orders them. abort() may come from any thread.
// Failure: an Error (never an exception, never a hang): kTimeout past the deadline, naming the
// ranks that did not come; kPeerLost when one died or left, naming it, within a second; kShutdown
// after abort(); kInterrupted by Ctrl-C. After these the group's ranks may disagree about what was
// done: every later operation fails at once with the same reason. kInvalidArgument: the ranks
// called different operations; outlivesDifferentCalls() says whether the group goes on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "transport/base/buffer.h"
#include "transport/base/deadline.h"
#include "transport/base/error.h"

namespace weft::collectives {

using transport::Deadline;
using transport::deadlineAfter;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// Copies a rank's own part of an operation, as much as has room. `to` may be `from`.
inline void copyOwn(ConstBytes from, Bytes to) {
  const std::size_t bytes = std::min(from.size(), to.size());
  if (bytes != 0 && from.data() != to.data()) std::memmove(to.data(), from.data(), bytes);
}

inline constexpr int kEverywhere = -1;  // instead of a root: all ranks want the result

// The type of the elements to reduce. kBytes has no arithmetic.
enum class Element : std::uint8_t {
  kBytes,
  kBool,  // one byte, 0 or 1; sum is "or", product is "and", as in torch
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,   // reduced in float32 and rounded: once, where all ranks' values meet in one place
  kBfloat16,  // likewise
  kFloat32,
  kFloat64,
  kComplex64,   // no min, max or bitwise
  kComplex128,  // likewise
};

enum class Reduction : std::uint8_t {
  kSum,
  kAverage,  // the sum, divided by the number of ranks; integers: toward zero, summed in 64 bits
  kProduct,
  kMin,
  kMax,
  kBitAnd,  // integers and bool
  kBitOr,
  kBitXor,
};

// Bytes of one element; 1 for kBytes.
std::size_t sizeOf(Element element) noexcept;
// False for what has no meaning, e.g. kMin of complex numbers.
bool canReduce(Element element, Reduction reduction) noexcept;
const char* toString(Element element) noexcept;
const char* toString(Reduction reduction) noexcept;

// One operation as all ranks must see it.
struct Call {
  Deadline deadline;
  // Counts the group's operations from 0. Ranks whose numbers differ are out of step.
  std::uint64_t sequence = 0;
  Element element = Element::kBytes;
  Reduction reduction = Reduction::kSum;
  // What else must be equal on all ranks, by a number below 128 that the caller assigns: of kBytes,
  // which type they are; of a reduction, whether its inputs were multiplied by a factor.
  std::uint8_t variant = 0;
  // Which sizes the data are made of, where several tensors travel as one (SizesDigest); 0: one
  // tensor. For operations without a root.
  std::uint32_t sizes_digest = 0;
  // Counts the operations of some of the ranks that do not take part in all of the group's. Those
  // who meet in one compare its `sequence`.
  std::optional<std::uint64_t> turn = std::nullopt;
};

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // Sizes are in bytes and multiples of the element's. Spans must not overlap unless stated.
  virtual Error barrier(const Call& call) = 0;
  // The same size on all ranks.
  virtual Error broadcast(const Call& call, Bytes data, int root) = 0;
  // In place; every rank gets the same bits.
  virtual Error allReduce(const Call& call, Bytes data) = 0;
  // In place at the root; the others' data is not changed.
  virtual Error reduce(const Call& call, Bytes data, int root) = 0;
  // out[r] receives rank r's `in`; sizes may differ between ranks, and all ranks pass the same
  // ones. out[rank()] may be `in` itself.
  virtual Error allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) = 0;
  // `out` is empty except at the root.
  virtual Error gather(const Call& call, ConstBytes in, std::span<const Bytes> out, int root) = 0;
  // `in` is empty except at the root.
  virtual Error scatter(const Call& call, std::span<const ConstBytes> in, Bytes out, int root) = 0;
  // in[r] is this rank's share of rank r's `out`; sizes may differ between r.
  // out may be in[rank()] itself.
  virtual Error reduceScatter(const Call& call, std::span<const ConstBytes> in, Bytes out) = 0;
  // in[r] goes to rank r, out[r] comes from it; any sizes, 0 among them, that agree pairwise.
  virtual Error allToAll(const Call& call, std::span<const ConstBytes> in,
                         std::span<const Bytes> out) = 0;

  // Fails the running operation, here and on the ranks that wait for this one, and all later ones.
  // Any thread; returns at once. The first reason stays.
  virtual void abort(Error reason) = 0;

  // No operation follows on this rank: the others' waits for it end with kPeerLost. Any thread; may
  // be called again. Nothing where the end of the mailbox says so.
  virtual void leave() noexcept {}

  // Whether the group goes on after ranks have called different operations; else every later
  // operation fails with the same error.
  virtual bool outlivesDifferentCalls() const noexcept { return false; }

  // The ranks that the running operation waits for, as far as this rank can tell: those that have
  // not come so far, or owe it a message. Empty where none is awaited, or it cannot tell. Any
  // thread; what it says may be over by the time it returns.
  virtual std::vector<int> awaited() const { return {}; }
  // WaitTimes::seconds(), by rank. Any thread.
  virtual std::vector<double> waited() const { return {}; }

  // Memory that these operations need not copy, or not as often. No data: take ordinary memory.
  // It may outlive the group. Any thread.
  virtual transport::OwnedBuffer allocate(std::size_t /*size*/) { return {}; }
  virtual bool allocates() const noexcept { return false; }
};

}  // namespace weft::collectives
