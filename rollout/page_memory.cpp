// Pages for packed models and caches.

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "rollout/packed_decoder.h"

namespace troupe {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

}  // namespace

PageMemory::PageMemory(size_t bytes) : bytes_((std::max<size_t>(bytes, 1) + kLargePage - 1) / kLargePage * kLargePage) {
  // One page more than asked for, so that the block can start on a large page.
  void* raw =
      ::mmap(nullptr, bytes_ + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) fail("cannot reserve ", bytes_ >> 20, " MiB of memory: ", std::strerror(errno));
  auto* first = static_cast<std::byte*>(raw);
  const size_t skipped = (kLargePage - reinterpret_cast<uintptr_t>(raw) % kLargePage) % kLargePage;
  if (skipped != 0) ::munmap(raw, skipped);
  ::munmap(first + skipped + bytes_, kLargePage - skipped);
  data_ = first + skipped;
  ::madvise(data_, bytes_, MADV_HUGEPAGE);  // only a wish: without it decoding is slower, not wrong
}

PageMemory::~PageMemory() { ::munmap(data_, bytes_); }

namespace {

struct Spare {
  std::mutex mutex;
  std::unique_ptr<PageMemory> pages;
};
/// Never destroyed: models may end after static objects do.
Spare& spare() {
  static auto* instance = new Spare;
  return *instance;
}

}  // namespace

std::unique_ptr<PageMemory> take_pages(size_t bytes) {
  {
    const std::scoped_lock lock(spare().mutex);
    auto& pages = spare().pages;
    if (pages != nullptr && pages->bytes() >= bytes && pages->bytes() - bytes < kLargePage) return std::move(pages);
  }
  return std::make_unique<PageMemory>(bytes);
}

void give_pages(std::unique_ptr<PageMemory> pages) {
  const std::scoped_lock lock(spare().mutex);
  spare().pages = std::move(pages);
}

}  // namespace troupe
