// What libweft.so shows of this layer; all else is hidden (see rpc_backend/api.h for why).
#pragma once

#ifndef WEFT_API
#define WEFT_API __attribute__((visibility("default")))
#endif
