// Data that are in all ranks' heaps: each rank reduces its own part where it is in all of them,
// and writes the result to where it is wanted. One meeting before, one after.
#include <algorithm>

#include "c10d_plugin/shm/reduction.h"
#include "transport/memory/fast_memcpy.h"

namespace weft::collectives::shm {
namespace {

// Bytes [at, at + bytes) of the data at all the scratch addresses.
void reduceStrip(Context& context, std::size_t at, std::size_t bytes, int root) {
  const std::vector<std::byte*>& addresses = context.scratch().addresses;
  auto& inputs = context.scratch().inputs;
  inputs.clear();
  for (const std::byte* const address : addresses)
    inputs.push_back(address + at);
  const int first = root == kEverywhere ? context.rank() : root;
  std::byte* const result = addresses[static_cast<std::size_t>(first)] + at;
  reduceInputs(context, result, bytes);
  for (int rank = 0; root == kEverywhere && rank < context.size(); ++rank) {
    if (rank == context.rank()) continue;
    transport::fastMemcpy(addresses[static_cast<std::size_t>(rank)] + at, result, bytes);
  }
}

}  // namespace

Error reduceDirect(Context& context, Bytes data, int root) {
  std::vector<std::byte*>& addresses = context.scratch().addresses;
  addresses.clear();
  for (int rank = 0; rank < context.size(); ++rank) {
    const Result<std::byte*> address =
        rank == context.rank() ? Result<std::byte*>(data.data())
                               : context.direct().find(rank, 0, data.size(), context.op());
    if (!address.ok()) return address.error();
    addresses.push_back(address.value());
  }
  Segment& segment = context.segment();
  if (segment.beginWriting(context.rank())) {
    const Bytes own = partOf(data, context.rank(), context.size());
    const auto begin = static_cast<std::size_t>(own.data() - data.data());
    for (std::size_t done = 0; done < own.size() && !segment.failed(); done += kStrip)
      reduceStrip(context, begin + done, std::min(kStrip, own.size() - done), root);
    segment.endWriting(context.rank());
  }
  return context.meet();
}

}  // namespace weft::collectives::shm
