#include "c10d_plugin/p2p/point_to_point.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>

#include <exception>
#include <memory>
#include <string>

#include "c10d_plugin/p2p/message_work.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "c10d_plugin/tensors/op_checks.h"
#include "transport/base/peer_name.h"

namespace weft::process_group {

using collectives::Label;
using collectives::Mailbox;
using collectives::Tag;
using std::chrono::milliseconds;
using transport::Error;

namespace {

// Tags of users are 32 bits; the monitored barrier's are above them.
Tag userTag(int tag) { return static_cast<std::uint32_t>(tag); }

// Set in the label of every message with a tensor, so that none equals the empty label.
constexpr std::uint64_t kIsType = std::uint64_t{1} << 16U;

// Both sides of a message name one type of elements.
Label labelOf(const at::Tensor& tensor) {
  return {{kIsType | static_cast<std::uint64_t>(tensor.scalar_type()), 0, 0}};
}

// "float32"; takes any label: a peer may have written it.
std::string typeText(const Label& label) {
  try {
    const auto type = static_cast<c10::ScalarType>(label.words[0] & 0xFFU);
    return std::string(c10::getDtypeNames(type).first);  // torch 2.15 gives a string_view
  } catch (const std::exception&) {
    return "an unknown type";
  }
}

// Why a receive with this label, of `bytes` bytes, failed.
Error whyFailed(const Mailbox::Received& got, const Label& wanted, std::size_t bytes) {
  // An error without a label is the mailbox's own, not a message's.
  if (got.label == Label() || got.label == wanted) return got.error;
  return {got.error.code(), "rank " + std::to_string(got.from) + " sent " +
                                transport::bytesText(got.size) + " of " + typeText(got.label) +
                                " where " + std::to_string(bytes) + " of " + typeText(wanted) +
                                " were expected; both sides must name the same type and size"};
}

// The tensor's memory, kept alive by the tensor.
transport::OwnedBuffer bufferOf(const ContiguousTensor& flat) {
  const auto bytes = flat.bytes();
  return {bytes.data(), bytes.size(), std::make_shared<at::Tensor>(flat.memory())};
}

}  // namespace

PointToPoint::WorkPtr PointToPoint::send(const at::Tensor& tensor, int to, int tag,
                                         milliseconds timeout, TrackedOp recorded) {
  constexpr const char* kTitle = "weft:send";
  checkDense(tensor, kTitle);
  const ContiguousTensor flat(tensor, ContiguousTensor::Use::kRead);
  auto work = c10::make_intrusive<MessageWork>(
      OpInfo{c10d::OpType::SEND, kTitle, Tensors{tensor}, {{tensor}}},
      "the send to rank " + std::to_string(to), timeout, mailbox_, waiting_, std::move(recorded),
      to);
  work->posted(mailbox_->send(
      to, userTag(tag), bufferOf(flat),
      [work](const Error& error) { error ? work->fail(error) : work->end(nullptr); },
      labelOf(tensor)));
  return work;
}

PointToPoint::WorkPtr PointToPoint::receive(const at::Tensor& tensor, int from, int tag,
                                            milliseconds timeout, TrackedOp recorded) {
  const bool any = from == collectives::kAnyRank;
  const char* title = any ? "weft:recvAnySource" : "weft:recv";
  checkDense(tensor, title);
  at::assert_no_internal_overlap(tensor);  // as of expand(): a message could not be written to it
  const ContiguousTensor flat(tensor, ContiguousTensor::Use::kWrite);
  const auto type = any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  auto work = c10::make_intrusive<MessageWork>(
      OpInfo{type, title, Tensors{tensor}, {{tensor}}},
      "the receive from " + (any ? "any rank" : "rank " + std::to_string(from)), timeout, mailbox_,
      waiting_, std::move(recorded), from);
  const Label label = labelOf(tensor);
  const auto ticket = mailbox_->receive(
      from, userTag(tag), bufferOf(flat),
      [work, flat, label](const Mailbox::Received& got) {
        if (got.error) return work->fail(whyFailed(got, label, flat.bytes().size()));
        work->setSource(got.from);
        std::exception_ptr error;  // no exception may reach the transport's thread
        try {
          flat.writeBack();
        } catch (...) {
          error = std::current_exception();
        }
        work->end(std::move(error));
      },
      label);
  work->posted(ticket);
  return work;
}

void PointToPoint::close() { mailbox_->close(); }

}  // namespace weft::process_group
