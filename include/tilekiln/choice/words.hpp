// SPDX-License-Identifier: MIT
// Words, fields and values: what problems and keys are made of.
//
// Every word (a field's name, a value such as "bf16") becomes a number once in a process, so that a problem is an array of
// numbers and two values are compared by one instruction. Nothing here knows an operator.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tilekiln/choice/mismatch.h"

namespace tilekiln::dispatcher {

// A table that only grows: text -> number and back. Looking up takes no lock.
template <uint32_t capacity>
class Interned {
 public:
  uint32_t number(std::string_view text) {
    const uint64_t hash = hash_of(text);
    if (const Entry* found = find(text, hash)) return found->number;
    const std::lock_guard lock(mutex_);
    if (const Entry* found = find(text, hash)) return found->number;
    if (count_ == capacity)
      throw std::length_error("too many words: was \"" + std::string(text) + "\" after " + std::to_string(count_));
    // Entries stay as long as the process: other threads may read them without a lock.
    const Entry* const made = new Entry{std::string(text), count_};
    by_number_[count_++].store(made, std::memory_order_release);
    uint32_t at = static_cast<uint32_t>(hash) % slots;
    while (by_text_[at].load(std::memory_order_relaxed) != nullptr) at = (at + 1) % slots;
    by_text_[at].store(made, std::memory_order_release);
    return made->number;
  }
  const std::string& text(uint32_t number) const { return by_number_[number].load(std::memory_order_acquire)->text; }
  uint32_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  struct Entry {
    std::string text;
    uint32_t number;
  };
  static constexpr uint32_t slots = 2 * capacity;

  static uint64_t hash_of(std::string_view text) {
    uint64_t hash = 1469598103934665603u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return hash ^ hash >> 29;
  }
  const Entry* find(std::string_view text, uint64_t hash) const {
    uint32_t at = static_cast<uint32_t>(hash) % slots;
    for (;; at = (at + 1) % slots) {
      const Entry* const entry = by_text_[at].load(std::memory_order_acquire);
      if (entry == nullptr || entry->text == text) return entry;
    }
  }

  std::atomic<const Entry*> by_text_[slots] = {};
  std::atomic<const Entry*> by_number_[capacity] = {};
  uint32_t count_ = 0;
  mutable std::mutex mutex_;
};

// The value of a field: a number, yes or no, a word, or nothing. `off` is what no, none and nothing have in common: the feature
// is not there, so they are equal where a problem meets a key.
class Value {
 public:
  constexpr Value() = default;
  constexpr Value(bool yes) : bits_(yes ? yes_bits : no_bits) {}
  Value(int64_t number) : bits_(number) { check(number); }
  Value(int number) : bits_(number) {}
  Value(const char* text) : Value(std::string_view(text)) {}
  Value(const std::string& text) : Value(std::string_view(text)) {}
  // "yes", "no", "none", a number, or any other word.
  Value(std::string_view text) : bits_(read(text)) {}
  // The word itself, even where it looks like a number.
  static Value word(std::string_view text) { return Value(words().number(text), Word()); }

  constexpr bool empty() const { return bits_ == empty_bits; }
  constexpr bool off() const { return bits_ <= none_bits; }
  constexpr bool is_bool() const { return bits_ == yes_bits || bits_ == no_bits; }
  constexpr bool is_number() const { return bits_ > none_bits && bits_ < yes_bits; }
  constexpr bool is_word() const { return bits_ >= first_word || bits_ == none_bits; }
  // 0 of what is no number.
  constexpr int64_t number() const { return is_number() ? bits_ : 0; }
  constexpr bool yes() const { return bits_ == yes_bits; }
  // Alike for all values that are off.
  constexpr int64_t meaning() const { return off() ? empty_bits : bits_; }
  constexpr bool means(Value other) const { return meaning() == other.meaning(); }
  friend constexpr bool operator==(Value a, Value b) { return a.bits_ == b.bits_; }
  friend constexpr bool operator!=(Value a, Value b) { return a.bits_ != b.bits_; }

  // Text as the selection language writes it; "" of nothing.
  std::string text() const { return is_number() ? std::to_string(bits_) : word_of(bits_); }
  // The word of what is no number, for as long as the process; "" of nothing.
  static const char* word_of(int64_t bits) {
    if (bits == empty_bits) return "";
    if (bits == no_bits) return "no";
    if (bits == none_bits) return "none";
    return bits == yes_bits ? "yes" : words().text(static_cast<uint32_t>(bits - first_word)).c_str();
  }
  // The value as the choice has it (mismatch.h).
  constexpr int64_t bits() const { return bits_; }
  static Value of_bits(int64_t bits) {
    Value made;
    made.bits_ = bits;
    return made;
  }

 private:
  struct Word {};
  Value(uint32_t number, Word) : bits_(first_word + number) {}
  static constexpr int64_t empty_bits = TILEKILN_NOTHING, no_bits = TILEKILN_NO, none_bits = TILEKILN_NONE;
  static constexpr int64_t yes_bits = TILEKILN_YES, first_word = yes_bits + 1;

  static Interned<16384>& words() {
    static Interned<16384> all;
    return all;
  }
  static void check(int64_t number) {
    if (number <= none_bits || number >= yes_bits)
      throw std::invalid_argument("value: was " + std::to_string(number) + ", must be less than 2^61");
  }
  static int64_t read(std::string_view text) {
    if (text.empty()) return empty_bits;
    const size_t sign = text[0] == '-';
    bool number = text.size() > sign && text.size() < 18;
    for (size_t i = sign; i < text.size() && number; ++i) number = text[i] >= '0' && text[i] <= '9';
    if (number) return std::stoll(std::string(text));
    if (text == "no") return no_bits;
    if (text == "yes") return yes_bits;
    if (text == "none") return none_bits;
    return first_word + words().number(text);
  }

  int64_t bits_ = empty_bits;
};

}  // namespace tilekiln::dispatcher
