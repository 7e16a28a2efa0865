#include "rpc_backend/rref/rref_report.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace weft::rpc {

namespace {

using torch::distributed::rpc::OwnerRRef;

using Holdings = std::unordered_map<RRefKey, RRefTable::Holding, RRefKeyHash>;

double secondsSince(RRefTable::Clock::time_point since) {
  return std::chrono::duration<double>(RRefTable::Clock::now() - since).count();
}

// Bytes of the storages of the tensors in `value`, each counted once.
std::uint64_t tensorBytes(const c10::IValue& value) {
  std::unordered_set<const void*> seen;
  std::uint64_t bytes = 0;
  value.visit([&](const c10::IValue& inner) {
    if (!inner.isTensor()) return false;
    const at::Tensor& tensor = inner.toTensor();
    if (!tensor.defined() || !tensor.has_storage()) return false;
    const at::Storage& storage = tensor.storage();
    if (seen.insert(storage.unsafeGetStorageImpl()).second) bytes += storage.nbytes();
    return false;
  });
  return bytes;
}

void addHolders(RRefRow& row, const std::vector<RRefKey>& forks, const Holdings& holdings) {
  for (const RRefKey& fork : forks) {
    const auto found = holdings.find(fork);
    // A call to itself, or an RRef on its way to itself, is nobody else's.
    const Rank unknown = fork == row.id ? row.owner : -1;
    row.holders.push_back(found == holdings.end() ? unknown : found->second.holder);
    if (found == holdings.end()) continue;
    row.age = std::max(row.age.value_or(0), secondsSince(found->second.since));
  }
  std::sort(row.holders.begin(), row.holders.end());
}

void addValue(RRefRow& row, OwnerRRef& rref, const DescribeValue& describe) {
  const auto future = rref.getFuture();
  if (!future->completed() || future->hasError()) return;
  const c10::IValue& value = future->constValue();
  if (!value.isPyObject()) {
    row.bytes = tensorBytes(value);
  } else if (describe) {
    const RRefValue described = describe(value);
    row.type = described.type;
    row.bytes = described.bytes;
  }
}

RRefRow rowOf(const torch_rrefs::RRef& rref, bool owned) {
  RRefRow row;
  row.id = fromTorch(rref.rrefId());
  row.owned = owned;
  row.type = rref.type()->annotation_str();
  row.owner = rref.owner();
  return row;
}

}  // namespace

std::vector<RRefRow> rrefReport(const RRefTable& table, const DescribeValue& describe,
                                const DropRRef& drop) {
  Holdings holdings;
  for (const auto& holding : table.holdings())
    holdings[holding.ids.fork] = holding;
  const auto users_since = table.usersSince();
  std::vector<RRefRow> rows;
  for (torch_rrefs::Owned& owned : torch_rrefs::owned()) {
    RRefRow row = rowOf(*owned.rref, /*owned=*/true);
    addHolders(row, owned.forks, holdings);
    addValue(row, static_cast<OwnerRRef&>(*owned.rref), describe);
    drop(std::move(owned.rref));
    rows.push_back(std::move(row));
  }
  for (const torch_rrefs::User& user : torch_rrefs::users()) {
    RRefRow row = rowOf(*user.rref, /*owned=*/false);
    if (const auto found = users_since.find(user.fork); found != users_since.end()) {
      row.age = secondsSince(found->second);
    }
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(), [](const RRefRow& a, const RRefRow& b) {
    return std::tie(b.owned, a.id) < std::tie(a.owned, b.id);
  });
  return rows;
}

}  // namespace weft::rpc
