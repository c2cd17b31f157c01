#include "segment/chain_links.hpp"

#include <cstring>

namespace kvstore {
namespace {

uint32_t group_of(const ChainLinks::Page& page) {
  uint64_t ns = 0, shard[2] = {};
  static_assert(sizeof page.ns == sizeof ns && sizeof page.shard <= sizeof shard);
  std::memcpy(&ns, page.ns.data(), sizeof ns);
  std::memcpy(shard, page.shard.data(), sizeof page.shard);
  return static_cast<uint32_t>(mix64(ns ^ mix64(shard[0] + mix64(shard[1] + mix64(page.pool)))));
}

}  // namespace

bool ChainLinks::is_there(uint32_t slot, uint32_t number) const {
  return number != 0 && place_of(slot) < places_[chunk_of(slot)] && links_[slot].number == number;
}

uint32_t ChainLinks::parent(uint32_t slot) const {
  const Link& link = links_[slot];
  return is_there(link.parent, link.parent_number) ? link.parent : kNoSlot;
}

void ChainLinks::came(uint32_t slot, const Page& page) noexcept {
  Link& link = links_[slot];
  link = Link{};
  if (++last_number_ == 0) last_number_ = 1;
  link.number = last_number_;
  link.depth = page.depth;
  link.group = group_of(page);
  touch(slot);
}

void ChainLinks::gone(uint32_t slot) noexcept {
  unlink(links_[slot]);
  links_[slot] = Link{};
}

const ChainLinks::Seen* ChainLinks::last_seen(uint32_t group, uint32_t depth) {
  const Seen& last = seen(group, depth);
  if (!is_there(last.slot, last.number)) return nullptr;
  const Link& link = links_[last.slot];
  return link.group == group && link.depth == depth ? &last : nullptr;
}

void ChainLinks::touch(uint32_t slot) noexcept {
  Link& link_of_it = links_[slot];
  const uint32_t group = link_of_it.group, depth = link_of_it.depth;
  ++now_;
  if (const Seen* deeper = last_seen(group, depth + 1)) {
    const bool near = now_ - deeper->when <= kNear;
    if (parent(deeper->slot) == kNoSlot || (near && links_[deeper->slot].guessed))
      link(deeper->slot, slot, !near);
  }
  if (depth > 0 && parent(slot) == kNoSlot)
    if (const Seen* before = last_seen(group, depth - 1)) link(slot, before->slot, true);
  seen(group, depth) = {slot, link_of_it.number, now_};
}

void ChainLinks::link(uint32_t child, uint32_t parent, bool guessed) noexcept {
  Link& lower = links_[child];
  unlink(lower);
  Link& upper = links_[parent];
  if (upper.children < kMany) ++upper.children;
  lower.parent = parent;
  lower.parent_number = upper.number;
  lower.guessed = guessed;
}

void ChainLinks::unlink(Link& child) noexcept {
  if (is_there(child.parent, child.parent_number)) {
    Link& upper = links_[child.parent];
    if (upper.children > 0 && upper.children < kMany) --upper.children;
  }
  child.parent = kNoSlot;
}

}  // namespace kvstore
