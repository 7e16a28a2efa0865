// HeldException: an exception of Python's that a future holds.
//
// torch's futures turn what Python raises into text, so a caller could not catch it by its type.
// Whoever waits for this one, from Python, gets an exception like the one that was raised: another
// object each time, because what is raised holds the frames that it passes, and they the future.
// Python's collector does not see that cycle, which would go through C++.
//
// Threads: any, with or without the GIL. Ownership: copies share the object; the last one takes the
// GIL to let go of it.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <string>

namespace weft::rpc {

class HeldException : public std::exception {
 public:
  // With the GIL.
  explicit HeldException(const pybind11::error_already_set& raised);

  // The type's name and the text, for those who wait in C++.
  const char* what() const noexcept override { return text_->c_str(); }
  // Makes an exception like it Python's current one. With the GIL.
  void restore() const;

 private:
  std::shared_ptr<PyObject> exception_;
  std::shared_ptr<const std::string> text_;
};

// Lets functions of pybind11 raise what they hold. Once, with the GIL.
void translateHeldExceptions();

}  // namespace weft::rpc
