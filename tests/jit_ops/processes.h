// Worker processes of a test: forked before torch has started a thread, each with a time limit.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace weft::testing {

// Runs each life in a process of its own; the caller's waits for all. Returns what each process
// that failed said: nothing when all is well. A life that throws fails; one killed by its own
// SIGKILL (to be "lost") does not when `may_die` names its index.
std::vector<std::string> runWorkers(const std::vector<std::function<void()>>& lives,
                                    const std::vector<std::size_t>& may_die = {});

// In a life, which gtest's own checks do not reach: throws what is not so.
void expect(bool fine, const std::string& what);
// `body` must throw a text with `part` in it, and without C++ stack frames.
void expectProblem(const std::string& part, const std::function<void()>& body);

// A path that no other test uses, for a FileStore.
std::string freshPath(const std::string& what);

// A port that was free just now.
std::string freePort();

}  // namespace weft::testing
