// From spans of device work to what a step costs. Pure functions.
#pragma once

#include <fastspec/step_trace.h>

#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"

namespace fastspec {

/// @param spans in any order; one that ends a step belongs to it, and steps do not overlap.
/// @param max_steps of the whole steps the last ones count: the first may hold what starting the record cost.
/// @throws Error(kUnsupported) where there is no whole step: two ends of steps are needed.
StepTrace summarize(std::vector<DeviceSpan> spans, int max_steps);

/// A kernel's name without return type, parameters, template arguments and our own namespaces:
/// "void a::(anonymous namespace)::b<3>(int)" is "a::b".
std::string short_kernel_name(std::string_view name);

}  // namespace fastspec
