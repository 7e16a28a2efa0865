// Names a private member of a class of torch's that has no other way in. With another torch, where
// there is no such member, it does not compile.
#pragma once

// `member(Tag{})` is then `pointer`, the pointer to that member. An explicit instantiation may name
// private members ([temp.explicit]); the friend that it defines returns the pointer.
#define WEFT_PRIVATE_MEMBER(Tag, pointer)       \
  struct Tag {                                  \
    friend auto member(Tag);                    \
  };                                            \
  template <auto Pointer>                       \
  struct Expose##Tag {                          \
    friend auto member(Tag) { return Pointer; } \
  };                                            \
  template struct Expose##Tag<pointer>

namespace weft::rpc {

// The member of this object.
template <typename Class, typename Tag>
auto& of(Class& object, Tag tag) {
  return object.*member(tag);
}

}  // namespace weft::rpc
