// Collectives of a group of one: copies inputs to outputs.
#pragma once

#include <memory>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives {

std::unique_ptr<Collectives> makeSoloCollectives();

}  // namespace weft::collectives
