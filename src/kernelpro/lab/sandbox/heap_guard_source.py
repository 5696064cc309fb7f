"""Guards around memory that a candidate's libraries and numpy get from malloc or `new`: C++ source.

It is part of the library of cpu_guard_source.py. It redirects calls in a library's table of imported
functions: first free and realloc in all libraries, then malloc and related functions in the candidate's
libraries, in numpy and in Python. In this order, because other threads may run: a guarded block must not
reach the plain free. There are two kinds of blocks:

 - In each call, the first blocks of the candidate's libraries and of numpy are blocks of
   cpu_guard_source.py, with margins on both sides.
 - Further ones, and those of Python, are plain blocks of malloc with a small margin behind their end. There
   is no margin before them: malloc keeps its bookkeeping there, and aborts if that was overwritten.

A block is overwritten when it is freed, so that a result which still depends on it is wrong.
"""

SOURCE = r"""
#include <cerrno>
#include <elf.h>
#include <link.h>
#include <malloc.h>

namespace heap {

constexpr size_t kMargin = 4096, kSlots = 1 << 16;
enum : uintptr_t { kEmpty = 0, kDeleted = 1 };

struct Entry {
  uintptr_t start;
  size_t size;
  bool mapped;
  Pattern pattern;  // of its margin
  size_t usable;    // of the block of malloc, while it is live
};

enum Owner { kCandidate, kNumpy, kPython, kOwners };
constexpr int kMappings[kOwners] = {64, 64, 0};
std::atomic<int> mappings_left[kOwners] = {kMappings[0], kMappings[1], kMappings[2]};

// The blocks freed last stay mapped, so that reading them gives the fill.
constexpr size_t kFreed = 16, kMaxFreedBytes = 16 << 20;
Block freed[kFreed];
size_t next_freed = 0;

// A table of its own, without malloc: free is called while it is locked.
std::mutex mutex;
Entry* entries = nullptr;
size_t used = 0;

size_t slot_of(uintptr_t start) { return (start >> 4) * 0x9E3779B97F4A7C15ull >> 48; }

Entry* find(uintptr_t start) {
  for (size_t slot = slot_of(start); entries[slot].start != kEmpty; slot = (slot + 1) % kSlots)
    if (entries[slot].start == start) return &entries[slot];
  return nullptr;
}

// False if the table is full.
bool insert(const Entry& entry) {
  if (Entry* stale = find(entry.start)) {  // malloc handed out its address again
    *stale = entry;
    return true;
  }
  if (used >= kSlots / 2) return false;
  size_t slot = slot_of(entry.start);
  while (entries[slot].start > kDeleted) slot = (slot + 1) % kSlots;
  used += entries[slot].start == kEmpty;
  entries[slot] = entry;
  return true;
}

size_t usable_size(uintptr_t start) { return malloc_usable_size(reinterpret_cast<void*>(start)); }

// Whether the block was released by a function that is not redirected, inside the C library for example.
bool is_stale(const Entry& entry) { return usable_size(entry.start) != entry.usable; }

void check(const Entry& entry) {
  const auto* low = reinterpret_cast<unsigned char*>(entry.start + entry.size);
  const auto *end = low, *high = low + kMargin;
  if (is_stale(entry)) return;
  if (entry.pattern.is_intact(low, kMargin)) return;
  while (*low == entry.pattern.at(low)) ++low;
  while (high[-1] == entry.pattern.at(high - 1)) --high;
  const uint64_t first = low - end, last = high - 1 - end;
  record({entry.start, entry.size, 1, first, last});
}

void refill(const Entry& entry) {
  entry.pattern.write(reinterpret_cast<unsigned char*>(entry.start + entry.size), kMargin);
}

void* track(void* start, size_t size, bool fresh) {
  if (!start) return start;
  const auto address = reinterpret_cast<uintptr_t>(start);
  const Entry entry{address, size, false, new_pattern(), usable_size(address)};
  if (fresh) memset(start, entry.pattern.fill, size);
  refill(entry);
  std::lock_guard<std::mutex> lock(mutex);
  insert(entry);
  return start;
}

// Checks a block and forgets it, without freeing it. An unknown block has size 0.
Entry forget(void* start) {
  std::lock_guard<std::mutex> lock(mutex);
  Entry* found = start ? find(reinterpret_cast<uintptr_t>(start)) : nullptr;
  if (!found) return {};
  const Entry entry = *found;
  found->start = kDeleted;
  if (entry.mapped) return entry;
  check(entry);
  return is_stale(entry) ? Entry{} : entry;
}

void free_mapped(void* start) {
  Block block = remove_block(start);
  if (!block.mapping) return;
  memset(block.start, fill_byte, block.size);
  if (block.mapped <= kMaxFreedBytes) {
    std::lock_guard<std::mutex> lock(mutex);
    std::swap(block, freed[next_freed++ % kFreed]);
  }
  if (block.mapping) munmap(block.mapping, block.mapped);
}

// A block with margins on both sides; null if it gets none.
void* map(size_t size, Owner owner) {
  if (!size || mappings_left[owner].fetch_sub(1) <= 0) return nullptr;
  void* start = map_block(size, true);
  if (!start) return nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (insert({reinterpret_cast<uintptr_t>(start), size, true, {}, 0})) return start;
  }
  free_mapped(start);
  return nullptr;
}

bool too_large(size_t size) { return size > PTRDIFF_MAX / 2; }

template <Owner owner> void* guarded_malloc(size_t size) {
  if (too_large(size)) return malloc(size);
  void* start = map(size, owner);
  return start ? start : track(malloc(size + kMargin), size, true);
}
template <Owner owner> void* guarded_calloc(size_t count, size_t each) {
  size_t size;
  if (__builtin_mul_overflow(count, each, &size) || too_large(size)) { errno = ENOMEM; return nullptr; }
  if (void* start = map(size, owner)) return memset(start, 0, size);
  return track(calloc(1, size + kMargin), size, false);
}
template <Owner owner> void* guarded_memalign(size_t alignment, size_t size) {
  if (too_large(size)) return nullptr;
  void* start = alignment <= Block::page() ? map(size, owner) : nullptr;
  return start ? start : track(memalign(alignment, size + kMargin), size, true);
}
template <Owner owner> int guarded_posix_memalign(void** into, size_t alignment, size_t size) {
  void* start = guarded_memalign<owner>(alignment, size);
  if (!start) return ENOMEM;
  *into = start;
  return 0;
}
template <Owner owner> void* guarded_new(size_t size) {
  void* start = guarded_malloc<owner>(size ? size : 1);
  if (!start) throw std::bad_alloc();
  return start;
}
template <Owner owner> void* guarded_new_nothrow(size_t size, const std::nothrow_t&) {
  return guarded_malloc<owner>(size ? size : 1);
}
template <Owner owner> void* guarded_valloc(size_t size) {
  return guarded_memalign<owner>(Block::page(), size);
}
template <Owner owner> void* guarded_new_aligned(size_t size, size_t alignment) {
  void* start = guarded_memalign<owner>(alignment, size ? size : 1);
  if (!start) throw std::bad_alloc();
  return start;
}
template <Owner owner>
void* guarded_new_aligned_nothrow(size_t size, size_t alignment, const std::nothrow_t&) {
  return guarded_memalign<owner>(alignment, size ? size : 1);
}
// The rest of a realloc of a mapped block: its content moves to `into`.
void* move(void* start, size_t old_size, void* into, size_t size) {
  if (into) memcpy(into, start, old_size < size ? old_size : size);
  free_mapped(start);
  return into;
}
template <Owner owner> void* guarded_realloc(void* start, size_t size) {
  Entry old = forget(start);
  if (old.mapped) return move(start, old.size, size ? guarded_malloc<owner>(size) : nullptr, size);
  return !size || too_large(size) ? realloc(start, size) : track(realloc(start, size + kMargin), size, false);
}
template <Owner owner> void* guarded_reallocarray(void* start, size_t count, size_t each) {
  size_t size;
  if (__builtin_mul_overflow(count, each, &size)) { errno = ENOMEM; return nullptr; }
  return guarded_realloc<owner>(start, size);
}
// for libraries that are not the candidate's: their new blocks stay as they are
void* checked_realloc(void* start, size_t size) {
  Entry old = forget(start);
  return old.mapped ? move(start, old.size, size ? malloc(size) : nullptr, size) : realloc(start, size);
}
void checked_free(void* start) {
  Entry old = forget(start);
  if (old.mapped) return free_mapped(start);
  if (old.size) memset(start, fill_byte, old.size);
  asm volatile("" : : "r"(start) : "memory");  // else the compiler leaves out what is written before free
  free(start);
}

void* checked_reallocarray(void* start, size_t count, size_t each) {
  size_t size;
  if (__builtin_mul_overflow(count, each, &size)) { errno = ENOMEM; return nullptr; }
  return checked_realloc(start, size);
}
size_t size_of(void* start) {
  std::lock_guard<std::mutex> lock(mutex);
  const Entry* found = start ? find(reinterpret_cast<uintptr_t>(start)) : nullptr;
  return found ? found->size : malloc_usable_size(start);
}

struct Redirection { const char* name; void *function, *original; };
using New = void* (*)(size_t);
using NewAligned = void* (*)(size_t, std::align_val_t);
using NewNothrow = void* (*)(size_t, const std::nothrow_t&);
using NewAlignedNothrow = void* (*)(size_t, std::align_val_t, const std::nothrow_t&);
template <Owner owner> const Redirection (&redirections())[16] {
  static const Redirection all[] = {
    {"malloc", (void*)guarded_malloc<owner>, (void*)malloc},
    {"calloc", (void*)guarded_calloc<owner>, (void*)calloc},
    {"realloc", (void*)guarded_realloc<owner>, (void*)realloc},
    {"reallocarray", (void*)guarded_reallocarray<owner>, (void*)reallocarray},
    {"memalign", (void*)guarded_memalign<owner>, (void*)memalign},
    {"aligned_alloc", (void*)guarded_memalign<owner>, (void*)aligned_alloc},
    {"posix_memalign", (void*)guarded_posix_memalign<owner>, (void*)posix_memalign},
    {"valloc", (void*)guarded_valloc<owner>, (void*)valloc},
    {"_Znwm", (void*)guarded_new<owner>, (void*)New(operator new)},
    {"_Znam", (void*)guarded_new<owner>, (void*)New(operator new[])},
    {"_ZnwmSt11align_val_t", (void*)guarded_new_aligned<owner>, (void*)NewAligned(operator new)},
    {"_ZnamSt11align_val_t", (void*)guarded_new_aligned<owner>, (void*)NewAligned(operator new[])},
    {"_ZnwmRKSt9nothrow_t", (void*)guarded_new_nothrow<owner>, (void*)NewNothrow(operator new)},
    {"_ZnamRKSt9nothrow_t", (void*)guarded_new_nothrow<owner>, (void*)NewNothrow(operator new[])},
    {"_ZnwmSt11align_val_tRKSt9nothrow_t", (void*)guarded_new_aligned_nothrow<owner>,
     (void*)NewAlignedNothrow(operator new)},
    {"_ZnamSt11align_val_tRKSt9nothrow_t", (void*)guarded_new_aligned_nothrow<owner>,
     (void*)NewAlignedNothrow(operator new[])},
  };
  return all;
}
// Of blocks that may be guarded.
const Redirection kReleases[] = {
  {"free", (void*)checked_free, (void*)free},
  {"realloc", (void*)checked_realloc, (void*)realloc},
  {"reallocarray", (void*)checked_reallocarray, (void*)reallocarray},
  {"malloc_usable_size", (void*)size_of, (void*)malloc_usable_size},
};

// Whether a pointer in a library's data is still the function that the loader stored. A library may have
// assigned another one: Python's _decimal replaces libmpdec's `mpd_free = free` by PyMem_Free.
bool is_unchanged(const void* pointer, const Redirection& redirection) {
  if (pointer == redirection.original) return true;
  for (const Redirection& release : kReleases)
    if (pointer == release.function) return true;
  return false;
}

#if defined(__x86_64__)
constexpr unsigned kSlotTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};
#elif defined(__aarch64__)
constexpr unsigned kSlotTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
#endif

#if defined(__x86_64__) || defined(__aarch64__)
template <size_t n>
void redirect(const dl_phdr_info* info, const ElfW(Rela)* table, size_t bytes, const ElfW(Sym)* symbols,
              const char* names, const Redirection (&redirections)[n]) {
  const size_t page = Block::page();
  for (size_t row = 0; table && row < bytes / sizeof *table; ++row) {
    const unsigned type = ELF64_R_TYPE(table[row].r_info);
    if (type != kSlotTypes[0] && type != kSlotTypes[1] && type != kSlotTypes[2]) continue;
    const char* name = names + symbols[ELF64_R_SYM(table[row].r_info)].st_name;
    for (const Redirection& one : redirections) {
      if (strcmp(name, one.name)) continue;
      auto** target = reinterpret_cast<void**>(info->dlpi_addr + table[row].r_offset);
      if (*target == one.function) break;
      if (type == kSlotTypes[2] && !is_unchanged(*target, one)) break;
      auto start = reinterpret_cast<uintptr_t>(target) / page * page;
      if (mprotect(reinterpret_cast<void*>(start), page, PROT_READ | PROT_WRITE) == 0) *target = one.function;
      break;
    }
  }
}

struct Pass {
  const char* prefix;  // of the candidate's libraries
  bool releases;       // redirect what releases blocks; else what allocates them
};

int redirect_object(dl_phdr_info* info, size_t, void* data) {
  const auto here = reinterpret_cast<uintptr_t>(&redirect_object);
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && here >= start && here < start + header.p_memsz) return 0;  // this library
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(start);
  }
  if (!dynamic || strstr(info->dlpi_name, "linux-vdso")) return 0;
  uintptr_t symbols = 0, names = 0, calls = 0, others = 0;
  size_t call_bytes = 0, other_bytes = 0;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    uintptr_t value = dynamic->d_un.d_ptr;
    switch (dynamic->d_tag) {
      case DT_PLTRELSZ: call_bytes = value; continue;
      case DT_RELASZ: other_bytes = value; continue;
      case DT_SYMTAB: symbols = value; break;
      case DT_STRTAB: names = value; break;
      case DT_JMPREL: calls = value; break;
      case DT_RELA: others = value; break;
      default: continue;
    }
    // the loader has made these absolute; where it has not, the library is left alone
    if (value < info->dlpi_addr) return 0;
  }
  if (!symbols || !names) return 0;
  const Pass& pass = *static_cast<const Pass*>(data);
  const char* name = info->dlpi_name;
  const bool own = strncmp(name, pass.prefix, strlen(pass.prefix)) == 0;
  // the executable has no name here; libpython has one if Python was built with it
  const bool python = !*name || strstr(name, "/libpython");
  auto apply = [&](uintptr_t table, size_t bytes) {
    const auto* rows = reinterpret_cast<const ElfW(Rela)*>(table);
    const auto* all = reinterpret_cast<const ElfW(Sym)*>(symbols);
    const auto* text = reinterpret_cast<const char*>(names);
    const bool numpy = strstr(name, "/_multiarray_umath");
    if (pass.releases) redirect(info, rows, bytes, all, text, kReleases);
    else if (own) redirect(info, rows, bytes, all, text, redirections<kCandidate>());
    else if (numpy) redirect(info, rows, bytes, all, text, redirections<kNumpy>());
    else if (python) redirect(info, rows, bytes, all, text, redirections<kPython>());
  };
  apply(calls, call_bytes);
  apply(others, other_bytes);
  return 0;
}
#endif

void allow_mappings() {
  for (int owner = 0; owner < kOwners; ++owner) mappings_left[owner] = kMappings[owner];
}

Entry* new_table() {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  void* table = mmap(nullptr, kSlots * sizeof(Entry), PROT_READ | PROT_WRITE, kFlags, -1, 0);
  return table == MAP_FAILED ? nullptr : static_cast<Entry*>(table);
}

// Replaces a table that deleted entries fill.
void renew_table() {
  Entry *old = entries, *fresh = used > kSlots / 4 ? new_table() : nullptr;
  if (!fresh) return;
  entries = fresh;
  used = 0;
  for (size_t slot = 0; slot < kSlots; ++slot)
    if (old[slot].start > kDeleted) insert(old[slot]);
  munmap(old, kSlots * sizeof(Entry));
}

// Checks the margins of all blocks of malloc, and fills them with the present fill.
void check_all() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!entries) return;
  renew_table();
  for (size_t slot = 0; slot < kSlots; ++slot) {
    Entry& entry = entries[slot];
    if (entry.start <= kDeleted || entry.mapped) continue;
    check(entry);
    if (is_stale(entry)) {
      entry.start = kDeleted;
      continue;
    }
    entry.pattern.fill = fill_byte;
    refill(entry);
  }
}

}  // namespace heap

// Redirects the libraries that are loaded now; those below `prefix` are the candidate's.
extern "C" void kernelpro_guards_watch(const char* prefix) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (!heap::entries) heap::entries = heap::new_table();
  if (!heap::entries) return;
  for (bool releases : {true, false}) {
    heap::Pass pass{prefix, releases};
    dl_iterate_phdr(heap::redirect_object, &pass);
  }
#endif
}
"""
