// Whether this build looks for memory errors and undefined behaviour. Tests of many like cases walk fewer of them then:
// the code is the same in all, and the optimised build runs them whole.
#pragma once

namespace fastspec::testing {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace fastspec::testing
