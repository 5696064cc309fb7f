"""The allocator that puts guards around torch's buffers on the CPU: C++ source that uses torch's headers.

Each block is a separate mapping: an inaccessible page, a margin, the buffer, a margin, an inaccessible page.
Margins are checked when a block is freed, and when the child asks. The first blocks of a call have large
margins and later ones a single page, because filling two megabytes takes about half a millisecond. Behind a
margin of one page, more pages are inaccessible.

The margins of each block hold a pattern of two bytes, of which one differs between blocks: a kernel that
copies past the ends of two buffers does not write what was there.
"""

ALLOCATOR = r"""
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr size_t kAlignment = 64, kLargeMargins = 64, kMaxDamages = 256, kSmallGap = 1 << 16;

// What a margin holds. Every type has its sign and exponent in the bytes at odd addresses.
struct Pattern {
  unsigned char fill, tag;  // at odd and at even addresses
  unsigned char at(const unsigned char* place) const {
    return reinterpret_cast<uintptr_t>(place) & 1 ? fill : tag;
  }
  void write(unsigned char* low, size_t size) const {
    for (size_t i = 0; i < size && i < 2; ++i) low[i] = at(low + i);
    for (size_t done = 2; done < size; done *= 2)
      memcpy(low + done, low, done < size - done ? done : size - done);
  }
  bool is_intact(const unsigned char* low, size_t size) const {
    return size < 3 || (low[0] == at(low) && low[1] == at(low + 1) && memcmp(low, low + 2, size - 2) == 0);
  }
};

struct Block {
  unsigned char *mapping, *start;
  size_t mapped, size, gap;
  Pattern pattern;  // of its margins: another thread may allocate while the fill changes
  unsigned char* begin() const { return mapping + gap; }
  unsigned char* end() const { return mapping + mapped - gap; }
  static size_t page() { static const size_t bytes = sysconf(_SC_PAGESIZE); return bytes; }
};

struct Damage { uint64_t start, size, after, first, last; };

std::mutex mutex, damages_mutex;
std::unordered_map<void*, Block>* blocks = nullptr;
std::vector<Damage>* damages = nullptr;
std::atomic<unsigned char> fill_byte{0xFF}, next_tag{0};
size_t margin_bytes = 0, large_left = kLargeMargins;
struct sigaction previous_handler[2];

void record(const Damage& damage) {
  std::lock_guard<std::mutex> lock(damages_mutex);
  if (damages->size() < kMaxDamages) damages->push_back(damage);
}

// A pattern that the blocks allocated before and after do not have.
Pattern new_pattern() { return {fill_byte, static_cast<unsigned char>(0x81 + next_tag++ % 127)}; }

// Records damage to a margin, and repairs it.
void check_margin(const Block& block, bool after) {
  unsigned char* const begin = after ? block.start + block.size : block.begin();
  unsigned char* const end = after ? block.end() : block.start;
  const unsigned char *low = begin, *high = end;
  if (block.pattern.is_intact(low, high - low)) return;
  while (*low == block.pattern.at(low)) ++low;
  while (high[-1] == block.pattern.at(high - 1)) --high;
  uint64_t first = after ? low - (block.start + block.size) : block.start - high;
  uint64_t last = after ? high - 1 - (block.start + block.size) : block.start - 1 - low;
  record({reinterpret_cast<uint64_t>(block.start), block.size, after, first, last});
  block.pattern.write(begin, end - begin);
}

void fill_margins(const Block& block) {
  block.pattern.write(block.begin(), block.start - block.begin());
  block.pattern.write(block.start + block.size, block.end() - block.start - block.size);
}

// A new block; null if there is no memory.
void* map_block(size_t size, bool large) {
  const size_t page = Block::page(), gap = large ? page : kSmallGap;
  const size_t margin = ((large ? margin_bytes : page) + page - 1) / page * page;
  const size_t data = (size + page - 1) / page * page;
  Block block{nullptr, nullptr, data + 2 * margin + 2 * gap, size, gap, new_pattern()};
  void* mapping = mmap(nullptr, block.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  block.mapping = static_cast<unsigned char*>(mapping);
  block.start = block.mapping + gap + margin;
  mprotect(block.mapping, gap, PROT_NONE);
  mprotect(block.mapping + block.mapped - gap, gap, PROT_NONE);
  fill_margins(block);
  memset(block.start, block.pattern.fill, size);
  std::lock_guard<std::mutex> lock(mutex);
  blocks->emplace(block.start, block);
  return block.start;
}

void* guarded_allocate(size_t size) {
  if (!size) return nullptr;
  bool large;
  {
    std::lock_guard<std::mutex> lock(mutex);
    large = large_left > 0;
    large_left -= large;
  }
  void* start = map_block(size, large);
  if (!start) throw std::bad_alloc();
  return start;
}

// Checks the margins of a block and forgets it, but leaves it mapped. Its mapping is null if it is none.
Block remove_block(void* start) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = blocks->find(start);
  if (found == blocks->end()) return {};
  Block block = found->second;
  blocks->erase(found);
  check_margin(block, false);
  check_margin(block, true);
  return block;
}

void guarded_free(void* start) {
  if (!start) return;
  if (Block block = remove_block(start); block.mapping) munmap(block.mapping, block.mapped);
}

struct GuardedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* start = guarded_allocate(size);
    return {start, start, &guarded_free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &guarded_free; }
  void copy_data(void* to, const void* from, size_t count) const override { memcpy(to, from, count); }
};

// Names the block behind whose margin an access failed, then lets the process die of it.
void report_fault(int number, siginfo_t* info, void*) {
  auto* address = static_cast<unsigned char*>(info->si_addr);
  for (auto& [start, block] : *blocks) {
    if (address < block.mapping || address >= block.mapping + block.mapped) continue;
    const bool after = address >= block.start;
    const size_t distance = after ? address - block.start - block.size : block.start - 1 - address;
    char line[160];
    int length = snprintf(line, sizeof line, "\nkernelpro-guard: %s %zu %zu\n", after ? "after" : "before",
                          distance, block.size);
    if (write(2, line, length) < 0) {}
    break;
  }
  sigaction(number, &previous_handler[number == SIGBUS], nullptr);
}

}  // namespace
"""

INTERFACE = r"""
extern "C" void kernelpro_guards_install(size_t margin) {
  blocks = new std::unordered_map<void*, Block>();
  damages = new std::vector<Damage>();
  damages->reserve(kMaxDamages);  // it never grows: free may be called while it is locked
  margin_bytes = margin;
  static GuardedAllocator allocator;
  c10::SetCPUAllocator(&allocator, 255);
  struct sigaction action = {};
  action.sa_sigaction = report_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &previous_handler[0]);
  sigaction(SIGBUS, &action, &previous_handler[1]);
}

extern "C" void kernelpro_guards_fill(int byte) {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& [start, block] : *blocks) {
    check_margin(block, false);
    check_margin(block, true);
  }
  fill_byte = static_cast<unsigned char>(byte);
  large_left = kLargeMargins;
  heap::allow_mappings();
  for (auto& [start, block] : *blocks) {
    block.pattern.fill = fill_byte;
    fill_margins(block);
  }
  heap::check_all();
}

// Checks all live blocks, writes at most `limit` rows and forgets them.
extern "C" int kernelpro_guards_damages(uint64_t* rows, int limit) {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& [start, block] : *blocks) {
    check_margin(block, false);
    check_margin(block, true);
  }
  heap::check_all();
  std::lock_guard<std::mutex> all(damages_mutex);
  int count = 0;
  for (auto& damage : *damages)
    if (count < limit) memcpy(rows + 5 * count++, &damage, sizeof damage);
  damages->clear();
  return count;
}
"""
