#include "c10d_plugin/net/mailbox/matching/op_progress.h"

namespace weft::collectives {

namespace {

// An operation's number begins again at 0 some day. So what is far below the last one is not an
// earlier operation, but a later one.
constexpr Tag kWindow = Tag{1} << (kChannelShift - 1);

bool sameChannel(Tag a, Tag b) { return (a >> kChannelShift) == (b >> kChannelShift); }

}  // namespace

Tag OpProgress::lowest(Tag last) {
  const Tag channel = last >> kChannelShift << kChannelShift;
  return last - channel > kWindow ? last - kWindow : channel;
}

void OpProgress::note(const Mailbox::OpStage& stage) {
  for (Mailbox::OpStage& known : stages_) {
    if (!sameChannel(known.last, stage.last)) continue;
    known = stage;
    return;
  }
  stages_.push_back(stage);
}

const Mailbox::OpStage* OpProgress::whereUnwanted(Tag tag, const Label& label) const {
  for (const Mailbox::OpStage& stage : stages_) {
    if (!sameChannel(stage.last, tag)) continue;
    if (tag > stage.last || tag < lowest(stage.last)) return nullptr;
    const bool may_be_taken = tag >= stage.first && !stage.over && label == stage.label;
    return may_be_taken ? nullptr : &stage;
  }
  return nullptr;
}

}  // namespace weft::collectives
