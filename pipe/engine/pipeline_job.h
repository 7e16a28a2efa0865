// The forward or the backward of a mini-batch as a job of the executor: what its cells pass each
// other, and the state of the calling thread that its threads take over.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "pipe/cell/activation.h"
#include "pipe/cell/pipeline_context.h"
#include "pipe/data/device_copier.h"
#include "pipe/schedule/schedule.h"
#include "pipe/schedule/stage_executor.h"

namespace weft::pipe {

class PipelineJob final : public Job {
 public:
  enum class Direction : unsigned char { kForward, kBackward };
  // Runs one task, on its worker's thread: receives, runs the cell, sends.
  using Perform = std::function<void(PipelineJob&, const Task&, const RngTurn&)>;

  // The workers get what is thread-local here, and the current streams.
  PipelineJob(PipelineContext& pipeline, std::size_t micro_batches, Schedule schedule,
              Direction direction, Perform perform);

  const Schedule& schedule() const { return schedule_; }

  // What a micro-batch's cells pass from stage - 1 to `stage`, or back. For stage 0, and for the
  // one after the last, this is the job's own input or output.
  Activations& passed(std::size_t micro_batch, std::size_t stage) {
    return payload(micro_batch, stage).content;
  }

  // What a cell gets: the payload, then the skips. From a cell that did not run it gets no payload
  // and undefined skips.
  Activations receive(CellIndex cell);
  // Passes on what a cell gives, in the same order, and begins to copy it to where it is needed.
  void send(CellIndex cell, Activations given);
  // Records from here to its end.
  Timeline::Span record(CellIndex cell, EventKind kind) const;

  void run(TaskId task, TaskOrder* order) override;
  void worker(std::size_t worker, const std::function<void()>& share) override;

 private:
  struct Payload {
    Activations content;
    PendingCopyPtr copy;
  };
  struct Skip {
    Activation content;
    PendingCopyPtr copy;
  };
  Payload& payload(std::size_t micro_batch, std::size_t stage) {
    return payloads_[micro_batch * (pipeline_.stages.size() + 1) + stage];
  }
  Skip& skip(std::size_t route, std::size_t micro_batch) {
    return skips_[micro_batch * pipeline_.routes.size() + route];
  }
  PendingCopyPtr copy(const std::vector<at::Tensor*>& tensors, c10::Device to,
                      CellIndex from) const;

  PipelineContext& pipeline_;
  const Schedule schedule_;
  const bool forward_;
  const Perform perform_;
  std::vector<Payload> payloads_;  // per micro-batch and stage, see passed()
  std::vector<Skip> skips_;        // per micro-batch and route
  const at::ThreadLocalState thread_state_;
  RngScope* const outside_;
  std::vector<c10::Stream> streams_;
};

}  // namespace weft::pipe
