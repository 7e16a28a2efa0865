// What libweft.so shows to others. Everything else is hidden, so that libuv inside it
// cannot clash with the copy that libtorch exports.
#pragma once

#define WEFT_API __attribute__((visibility("default")))
