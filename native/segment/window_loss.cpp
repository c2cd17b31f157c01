#include "segment/window_loss.hpp"

namespace kvstore {

template <typename Change>
void WindowLoss::at_member(uint32_t slot, Change&& change) {
  Member& member = members_[slot];
  sum_.heads -= member.leaves_some();
  change(member);
  sum_.heads += member.leaves_some();
  if (member.children == 0 && member.children_inside == 0) members_.erase(slot);
}

void WindowLoss::change(const Object& object, bool comes) {
  const auto count = [comes](uint32_t& counter) { comes ? ++counter : --counter; };
  if (object.is_retained) count(sum_.retained);
  sum_.cost += comes ? object.cost : -object.cost;
  if (object.children > 0)
    at_member(object.slot, [&](Member& member) { member.children = comes ? object.children : 0; });
  if (object.parent != kNoSlot)
    at_member(object.parent, [&](Member& member) { count(member.children_inside); });
}

}  // namespace kvstore
