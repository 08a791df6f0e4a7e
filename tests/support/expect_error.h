// Assertions about fastspec::Error: its code and what its message names.
#pragma once

#include <fastspec/error.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace fastspec::test {

/// Runs `action`, expects an Error with this code whose message contains every part, and returns the message.
template <typename Action>
std::string expect_error(ErrorCode code, std::initializer_list<std::string> parts, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_STREQ(to_string(error.code()), to_string(code)) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
    }
    return message;
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

}  // namespace fastspec::test
