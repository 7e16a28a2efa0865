#include "c10d_plugin/net/hosts/host_layout.h"

#include <algorithm>
#include <bit>
#include <map>

namespace weft::collectives {

HostLayout HostLayout::of(const std::vector<std::string>& identity, int rank) {
  HostLayout layout;
  layout.rank = rank;
  std::map<std::string, std::size_t> known;
  for (int r = 0; r < static_cast<int>(identity.size()); ++r) {
    const std::string& id = identity[static_cast<std::size_t>(r)];
    std::size_t host = layout.hosts.size();
    if (!id.empty()) host = known.emplace(id, host).first->second;
    if (host == layout.hosts.size()) layout.hosts.emplace_back();
    layout.hosts[host].push_back(r);
  }
  layout.host = layout.hostOf(rank);
  layout.local = layout.localOf(rank);
  return layout;
}

int HostLayout::hostOf(int other) const {
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const auto& ranks) {
    return std::find(ranks.begin(), ranks.end(), other) != ranks.end();
  });
  return static_cast<int>(found - hosts.begin());
}

int HostLayout::localOf(int other) const {
  const std::vector<int>& ranks = hosts[static_cast<std::size_t>(hostOf(other))];
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), other) - ranks.begin());
}

int HostLayout::fewest() const {
  std::size_t count = hosts[0].size();
  for (const auto& ranks : hosts)
    count = std::min(count, ranks.size());
  return static_cast<int>(count);
}

int HostLayout::most() const {
  std::size_t count = 0;
  for (const auto& ranks : hosts)
    count = std::max(count, ranks.size());
  return static_cast<int>(count);
}

std::vector<int> HostLayout::across(int index) const {
  std::vector<int> ranks;
  for (const auto& host_ranks : hosts)
    ranks.push_back(host_ranks[static_cast<std::size_t>(index)]);
  return ranks;
}

std::string HostLayout::numbering() const {
  std::string text;
  for (std::size_t i = 0; i < here().size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(i) + " is rank " + std::to_string(here()[i]);
  return text;
}

bool HostLayout::treeKeepsToHosts(int root) const {
  if (fewest() != 2 || most() != 2) return false;
  if (!std::has_single_bit(hosts.size()) && root % 2 != 0) return false;
  return std::all_of(hosts.begin(), hosts.end(), [](const std::vector<int>& ranks) {
    return ranks[0] % 2 == 0 && ranks[1] == ranks[0] + 1;
  });
}

}  // namespace weft::collectives
