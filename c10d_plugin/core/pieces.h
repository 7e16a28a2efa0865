// The pieces in which large data travel.
#pragma once

#include <algorithm>
#include <cstddef>

namespace weft::collectives {

// The smallest piece. Pieces are multiples of it, and so of every element's size.
inline constexpr std::size_t kPiece = std::size_t{256} << 10;
// The largest. Few large messages cost less than many, whose headers, acknowledgements and wake-ups
// each take microseconds; but forwarding and reducing overlap with receiving in pieces only.
inline constexpr std::size_t kLargePiece = std::size_t{2} << 20;

// Of no bytes there are none, whatever the piece.
inline std::size_t piecesOf(std::size_t bytes, std::size_t piece) {
  return bytes == 0 ? 0 : (bytes - 1) / piece + 1;
}

// Empty behind the end.
template <typename Span>
Span pieceOf(Span data, std::size_t index, std::size_t piece) {
  const std::size_t from = std::min(index * piece, data.size());
  return data.subspan(from, std::min(piece, data.size() - from));
}

}  // namespace weft::collectives
