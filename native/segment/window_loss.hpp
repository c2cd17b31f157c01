// What is lost when everything in a range of addresses goes: the sum over its objects, kept up to date while the range
// slides. A page that others hang on counts as a head as long as one of those stays outside of the range.
#pragma once

#include <cstdint>
#include <tuple>
#include <unordered_map>

#include "segment/by_slot.hpp"

namespace kvstore {

class WindowLoss {
 public:
  struct Object {
    uint32_t slot = kNoSlot;
    uint32_t parent = kNoSlot;  // what it hangs on
    uint32_t children = 0;      // that hang on it
    bool is_retained = false;
    double cost = 0;
  };
  struct Sum {
    uint32_t retained = 0;
    uint32_t heads = 0;  // that would leave a page behind which hangs on them
    double cost = 0;
    // What somebody wants retained goes last, and a head goes after what hangs on it.
    bool operator<(const Sum& o) const {
      return std::tie(retained, heads, cost) < std::tie(o.retained, o.heads, o.cost);
    }
  };

  void add(const Object& object) { change(object, true); }
  // One that was added.
  void take_out(const Object& object) { change(object, false); }
  const Sum& sum() const { return sum_; }

 private:
  // Of an object in the range, or one outside that objects in the range hang on.
  struct Member {
    uint32_t children = 0;         // 0 outside
    uint32_t children_inside = 0;  // of the range
    bool leaves_some() const { return children > children_inside; }
  };

  void change(const Object& object, bool comes);
  template <typename Change>
  void at_member(uint32_t slot, Change&& change);

  Sum sum_;
  std::unordered_map<uint32_t, Member> members_;  // by slot; those that are linked alone
};

}  // namespace kvstore
