// HostLayout: which ranks share a host, and this rank's place among them.
#pragma once

#include <string>
#include <vector>

namespace weft::collectives {

struct HostLayout {
  // Ranks by host, ascending within a host; hosts in the order of their first rank.
  std::vector<std::vector<int>> hosts;
  int rank = 0;
  int host = 0;   // index of this rank's host
  int local = 0;  // index of this rank on it

  // `identity` by rank: equal and nonempty on one host (transport::hostIdentity()); an empty one is
  // a host of its own.
  static HostLayout of(const std::vector<std::string>& identity, int rank);

  const std::vector<int>& here() const { return hosts[static_cast<std::size_t>(host)]; }
  int hostOf(int other) const;
  int localOf(int other) const;
  // Ranks on the host that has fewest, and most.
  int fewest() const;
  int most() const;
  // The ranks with this index on each host; index < fewest().
  std::vector<int> across(int index) const;
  // "0 is rank 2, 1 is rank 3": the indices on this rank's host.
  std::string numbering() const;
  // Whether a binomial tree of all ranks, with two on each host, enters each other host only once.
  bool treeKeepsToHosts(int root) const;
};

}  // namespace weft::collectives
