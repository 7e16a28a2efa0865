// Random numbers: drawn in the schedule's order, and repeated exactly when a stage runs again.
//
// All CPU stages draw from one default generator, and nobody can tell beforehand which of them
// will. So the first time that a task draws from a CPU generator, reads or sets its state or seeds
// it, it waits until all tasks before it in the schedule have ended, and no later task gets there
// before it has ended itself. A recomputation begins with the state found then.
//
//   a random operator or a method of torch.Generator --> touchGenerator() --> the thread's RngScope
//                                                  waits for its turn, saves or restores the state
//
// The dispatcher calls a kernel of Weft's before the backend's own, for every operator with a
// generator among its arguments; pipe/python/rng.cpp wraps the methods of Python's torch.Generator.
// An accelerator's default generator belongs to the one worker of its device, and its state is
// saved before every run that may be repeated.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "pipe/schedule/stage_executor.h"
#include "transport/base/api.h"

namespace weft::pipe {

// The states of the generators that a stage run used, from before it, and those of CPU generators
// from after it.
class RngStates {
 public:
  // Saves the generator's present state; false if one of it is there.
  bool save(const at::Generator& generator);
  // Puts the state back into the generator, if there is one of it.
  void restore(const at::Generator& generator) const;
  void restoreAll() const;
  // Saves the states from after the run.
  void saveEnds();
  // Whether the generators' present states are those from after the run, of the CPU generators that
  // are in `used` as well.
  bool endAsSaved(const RngStates& used) const;
  bool empty() const { return states_.empty(); }

 private:
  struct Saved {
    at::Generator generator;
    at::Tensor state;
    at::Tensor end;
  };
  const Saved* find(const at::Generator& generator) const;
  std::vector<Saved> states_;
};

// A task's place in its job.
struct RngTurn {
  TaskOrder* order = nullptr;  // nullptr: it is always the task's turn
  TaskId task = 0;
  class RngScope* outside = nullptr;   // around the whole job: a Pipe may be a layer of another
  const ThreadHooks* hooks = nullptr;  // of the threads that have an order
};

// One task's use of generators. Lives on the thread that runs the task.
class RngScope {
 public:
  enum class Purpose : unsigned char {
    kDraw,    // draws go on in the generators
    kRecord,  // and their states before it are kept, for a repetition
    kRepeat,  // begins with the states of then; afterwards the generators are as they were
  };
  // `then`: for kRepeat, the states that were recorded; nullptr: none were. `expected`: the task is
  // likely to draw, so it waits for its turn at once, while it holds no lock.
  RngScope(const RngTurn& turn, c10::Device device, Purpose purpose, const RngStates* then,
           bool expected);
  ~RngScope();
  RngScope(const RngScope&) = delete;
  RngScope& operator=(const RngScope&) = delete;

  // Call it before the task uses a CPU generator. Throws when the task's turn does not come: a task
  // before it may be waiting for a lock that this task holds.
  void touch(const at::Generator& generator);
  bool touched() const { return touched_; }
  // For kRecord: the states before the task, of the generators that it has used until now.
  const RngStates& before() const { return before_; }
  // For kRecord, once, at the task's end: the states before the task and at its end.
  RngStates take();
  // For kRepeat, at the task's end: throws if the task did not draw the recorded numbers.
  void checkRepeated(std::size_t stage) const;

 private:
  void awaitTurn(std::chrono::seconds at_most);
  void begin(const at::Generator& generator);

  const RngTurn turn_;
  const Purpose purpose_;
  const RngStates* const then_;
  RngScope* const enclosing_;
  RngStates before_;
  bool touched_ = false;
};

// The scope of this thread; nullptr outside of tasks.
WEFT_API RngScope* currentRngScope();
// Tells it, if there is one, that a generator is about to be used.
WEFT_API void touchGenerator(const at::Generator& generator);

// Makes the dispatcher call touchGenerator for the operators that draw and are there now: a library
// may bring more later. Any thread.
void watchRandomOperators();

}  // namespace weft::pipe
