// select_slots and update_page_bounds on the CPU: they compare and copy, so both paths share them.
#pragma once

#include "backend/cpu/thread_pool.h"
#include "backend/params.h"

namespace fastspec::cpu {

void select_slots(const SelectSlotsParams& params, ThreadPool& pool);
void update_page_bounds(const PageBoundsParams& params, ThreadPool& pool);

}  // namespace fastspec::cpu
