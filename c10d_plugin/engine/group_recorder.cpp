#include "c10d_plugin/engine/group_recorder.h"

#include <utility>

namespace weft::process_group {

std::uint64_t GroupRecorder::nextId() {
  static std::atomic<std::uint64_t> next{0};
  return next.fetch_add(1);
}

OpRecord GroupRecorder::makeRecord(const OpParams& params, const OpInfo& info,
                                   std::uint64_t sequence) const {
  OpRecord made;
  made.group_id = id_;
  if (params.group != nullptr) {
    made.group_name = params.group->getGroupUid();
    made.group_description = params.group->getGroupDesc();
  }
  made.collective_sequence = sequence;
  made.message_sequence = messages_.load(std::memory_order_relaxed);
  made.title = params.title;
  made.rank = rank_;
  made.is_message = info.type == c10d::OpType::SEND || info.type == c10d::OpType::RECV ||
                    info.type == c10d::OpType::RECVANYSOURCE;
  if (info.inputs) made.inputs = shapesOf(*info.inputs);
  for (const auto& list : info.outputs) {
    for (auto& shape : shapesOf(list))
      made.outputs.push_back(std::move(shape));
  }
  made.timeout = params.timeout;
  return made;
}

TrackedOp GroupRecorder::tracked(OpRecord made) {
  OpRecorder& recorder = OpRecorder::get();
  return recorder.on() ? TrackedOp(recorder.add(std::move(made))) : TrackedOp(std::move(made));
}

OpRecord GroupRecorder::ownCall(const TrackedOp& recorded, const OpParams& params,
                                const OpInfo& info, std::uint64_t sequence) const {
  auto known = recorded.record();
  auto site = known ? OpRecorder::get().siteForErrors() : OpRecorder::get().site();
  OpRecord made = known ? *std::move(known) : makeRecord(params, info, sequence);
  made.site = std::move(site);
  return made;
}

TrackedOp GroupRecorder::recordMessage(const OpParams& params, c10d::OpType type,
                                       const at::Tensor& tensor, int peer, int tag) {
  messages_.fetch_add(1, std::memory_order_relaxed);
  const bool sends = type == c10d::OpType::SEND;
  OpRecord made = makeRecord(params,
                             OpInfo{type,
                                    params.title,
                                    sends ? std::vector{tensor} : std::vector<at::Tensor>(),
                                    {sends ? std::vector<at::Tensor>() : std::vector{tensor}}},
                             calls());
  made.peer = peer;
  made.tag = tag;
  TrackedOp recorded = tracked(std::move(made));
  recorded.start();
  return recorded;
}

}  // namespace weft::process_group
