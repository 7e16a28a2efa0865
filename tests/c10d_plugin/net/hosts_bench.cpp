// Times the collectives between two hosts (network namespaces) beside Gloo's own TCP transport:
// microseconds per operation, median, taken in turns within one run.
//
//   hosts_bench [ranks per host] [largest size in bytes] [seconds per point]
//
// Columns: gloo (Debian's libgloo over its TCP transport); messages without sessions, to see what
// those cost; messages and gloo-on-weft without a hierarchy, and both with one.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>

#include "c10d_plugin/net/hosts/gloo_loader.h"
#include "c10d_plugin/net/hosts/hierarchical_collectives.h"
#include "c10d_plugin/net/messages/message_collectives.h"
#include "c10d_plugin/shm/shm_collectives.h"
#include "tests/c10d_plugin/net/namespaces.h"
#include "tests/c10d_plugin/net/world.h"

namespace weft::collectives {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}

template <typename T>
T need(Result<T> result) {
  if (!result.ok()) give_up(result.error().text());
  return std::move(result).value();
}

struct Plan {
  int ranks_per_host;
  std::size_t largest;
  double seconds;
};

// One way to run each operation.
struct Way {
  std::string name;
  std::function<void(Bytes)> all_reduce;
  std::function<void(Bytes)> broadcast;
  std::function<void()> barrier;
};

Way wayOf(const std::string& name, Collectives& collectives, std::uint64_t& sequence) {
  const auto call = [&sequence] {
    return Call{soon(), sequence++, Element::kFloat32, Reduction::kSum};
  };
  const auto check = [](const Error& error) {
    if (error) give_up(error.text());
  };
  return {name, [=, &collectives](Bytes data) { check(collectives.allReduce(call(), data)); },
          [=, &collectives](Bytes data) { check(collectives.broadcast(call(), data, 0)); },
          [=, &collectives] { check(collectives.barrier(call())); }};
}

Way glooTcp(const std::shared_ptr<gloo::Context>& context) {
  return {"gloo",
          [context](Bytes data) {
            gloo::AllreduceOptions options(context);
            auto* values = reinterpret_cast<float*>(data.data());
            options.setOutputs(&values, 1, data.size() / sizeof(float));
            options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
              auto* const sum = static_cast<float*>(out);
              for (std::size_t i = 0; i < n; ++i)
                sum[i] = static_cast<const float*>(a)[i] + static_cast<const float*>(b)[i];
            });
            gloo::allreduce(options);
          },
          [context](Bytes data) {
            gloo::BroadcastOptions options(context);
            options.setOutput(reinterpret_cast<std::uint8_t*>(data.data()), data.size());
            options.setRoot(0);
            gloo::broadcast(options);
          },
          [context] {
            gloo::BarrierOptions options(context);
            gloo::barrier(options);
          }};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// From the moment the last rank begins to the moment the last rank is done: the clock is one for
// all processes of the machine.
std::vector<double> together(const std::string& title, int rank, int size, KeyValue& store,
                             const std::vector<std::int64_t>& own) {
  std::string text;
  for (const std::int64_t stamp : own)
    text += std::to_string(stamp) + " ";
  say(store, title + "/" + std::to_string(rank), text);
  std::vector<std::int64_t> latest(own.size());
  for (int other = 0; other < size && rank == 0; ++other) {
    std::istringstream in(hear(store, title + "/" + std::to_string(other)));
    for (std::int64_t& stamp : latest) {
      std::int64_t theirs = 0;
      in >> theirs;
      stamp = std::max(stamp, theirs);
    }
  }
  std::vector<double> times;
  for (std::size_t i = 0; i + 1 < latest.size(); i += 2)
    times.push_back(static_cast<double>(latest[i + 1] - latest[i]) / 1000);
  return times;
}

// All ways in turns; every rank makes the same number of rounds, which rank 0 chooses.
void measure(const std::string& title, int rank, const Plan& plan, KeyValue& store,
             std::vector<Way>& ways, const std::function<void(Way&)>& run) {
  std::map<std::string, std::vector<std::int64_t>> stamps;
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
        .count();
  };
  const auto began = Clock::now();
  for (Way& way : ways)
    for (int i = 0; i < 2; ++i)
      run(way);
  if (rank == 0) {
    const double each = std::chrono::duration<double>(Clock::now() - began).count() / 2;
    say(store, title, std::to_string(std::clamp(static_cast<int>(plan.seconds / each), 5, 300)));
  }
  const int rounds = std::stoi(hear(store, title));
  for (int i = 0; i < rounds; ++i) {
    for (Way& way : ways) {
      way.barrier();
      stamps[way.name].push_back(now());
      run(way);
      stamps[way.name].push_back(now());
      // Else who is done early wakes the next way's threads while others are still at this one.
      way.barrier();
    }
  }
  std::map<std::string, std::vector<double>> times;
  for (Way& way : ways)
    times[way.name] =
        together(title + way.name, rank, 2 * plan.ranks_per_host, store, stamps[way.name]);
  if (rank != 0) return;
  std::printf("%-22s", title.c_str());
  const double gloo = median(times["gloo"]);
  std::printf(" %10.0f", gloo);
  for (std::size_t i = 1; i < ways.size(); ++i) {
    const double own = median(times[ways[i].name]);
    std::printf(" %10.0f (%4.2f)", own, gloo / own);
  }
  std::printf("  n=%d\n", rounds);
  std::fflush(stdout);
}

void runRank(int rank, const Plan& plan, const Namespaces& net, KeyValue& store,
             const std::filesystem::path& folder) {
  const int host = rank / plan.ranks_per_host;
  const int size = 2 * plan.ranks_per_host;
  net.enter(host);
  std::vector<int> all;
  for (int r = 0; r < size; ++r)
    all.push_back(r);

  gloo::transport::tcp::attr attributes(Namespaces::address(host).c_str());
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  std::filesystem::create_directories(folder / "gloo");
  gloo::rendezvous::FileStore gloo_store((folder / "gloo").string());
  context->connectFullMesh(gloo_store, device);

  const std::shared_ptr<EndpointMailbox> box =
      joinAs(rank, size, store,
             [&](MailboxOptions& options) { options.listen_address = Namespaces::address(host); });
  FolderKeyValue bare_store(folder / "bare");
  const std::shared_ptr<EndpointMailbox> bare_box =
      joinAs(rank, size, bare_store, [&](MailboxOptions& options) {
        options.listen_address = Namespaces::address(host);
        options.reconnect_timeout = std::chrono::milliseconds(0);
      });
  MessageCollectives bare(bare_box, all, 12);
  const HostLayout layout = HostLayout::of(box->hosts(), rank);
  const auto gloo_on_weft = need(makeGlooCollectives(box, all, 10));
  MessageCollectives messages(box, all, 11);
  const auto hierarchy = [&](unsigned channel, bool with_gloo) {
    HierarchySteps::Parts parts;
    parts.mailbox = box;
    parts.flat = std::make_unique<MessageCollectives>(box, all, channel);
    const auto members = layout.across(layout.local);
    if (with_gloo) {
      parts.across = need(makeGlooCollectives(box, members, channel + 1));
    } else {
      parts.across = std::make_unique<MessageCollectives>(box, members, channel + 1);
    }
    FolderKeyValue here(folder / (std::to_string(channel) + "on" + std::to_string(host)));
    if (plan.ranks_per_host > 1) {
      parts.inside = need(
          ShmCollectives::join({}, box->key(), here, layout.local, plan.ranks_per_host, soon()));
    } else {
      parts.inside = std::make_unique<MessageCollectives>(box, layout.here(), channel + 2);
    }
    return std::make_unique<HierarchicalCollectives>(layout, std::move(parts));
  };
  const auto by_messages = hierarchy(20, false);
  const auto by_gloo = hierarchy(30, true);
  std::vector<std::uint64_t> sequences(5);
  std::vector<Way> ways{glooTcp(context), wayOf("no sessions", bare, sequences[4]),
                        wayOf("messages", messages, sequences[0]),
                        wayOf("gloo on weft", *gloo_on_weft, sequences[1])};
  if (plan.ranks_per_host > 1) {
    ways.push_back(wayOf("hierarchy messages", *by_messages, sequences[2]));
    ways.push_back(wayOf("hierarchy gloo", *by_gloo, sequences[3]));
  }
  if (rank == 0) {
    std::printf("%-22s", "us (times gloo)");
    for (const Way& way : ways)
      std::printf(way.name == "gloo" ? " %10s" : " %17s", way.name.c_str());
    std::printf("\n");
  }
  measure("barrier", rank, plan, store, ways, [](Way& way) { way.barrier(); });
  std::vector<std::byte> data(plan.largest);
  for (std::size_t bytes = 8; bytes <= plan.largest; bytes *= 8) {
    const Bytes some = Bytes(data).first(bytes);
    measure("all_reduce " + std::to_string(bytes), rank, plan, store, ways,
            [&](Way& way) { way.all_reduce(some); });
  }
  for (std::size_t bytes = 4096; bytes <= plan.largest; bytes *= 64) {
    const Bytes some = Bytes(data).first(bytes);
    measure("broadcast " + std::to_string(bytes), rank, plan, store, ways,
            [&](Way& way) { way.broadcast(some); });
  }
  meet(store, rank, size, "end");
}

}  // namespace
}  // namespace weft::collectives

int main(int argc, char** argv) {
  using namespace weft::collectives;  // NOLINT(google-build-using-namespace)
  const Plan plan{argc > 1 ? std::atoi(argv[1]) : 1,
                  argc > 2 ? static_cast<std::size_t>(std::atoll(argv[2])) : std::size_t{16} << 20,
                  argc > 3 ? std::atof(argv[3]) : 2.0};
  setGlooLibrary("c10d_plugin/net/gloo/libweft_gloo.so");
  const Namespaces net(2);
  if (!net.problem().empty()) give_up(net.problem());
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2 * plan.ranks_per_host; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      FolderKeyValue store(folder.path() / "weft");
      runRank(rank, plan, net, store, folder.path());
      std::_Exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed += status != 0 ? 1 : 0;
  }
  return failed;
}
