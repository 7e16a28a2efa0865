// What the kernel tells about single pages of this process (/proc/self/pagemap). Any thread.
#pragma once

#include <cstddef>

namespace weft::transport {

// Whether a page of a private file mapping was written, however that was done: it is this process's
// own then. Also true when the kernel does not tell.
bool hasOwnPages(const std::byte* data, std::size_t size);

}  // namespace weft::transport
