"""Physical KV pages: who owns them, which are free, which can be found by their content. No torch.

A page is in exactly one state: *free* (no owner, no hash), *cached* (no owner, found by hash until it is
needed for something else) or *owned* (one reference per request that has it in its block table).
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b


def page_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full page: the chain of all pages before it, then its own tokens."""
    digest = blake2b(parent, digest_size=16)
    digest.update(b",".join(b"%d" % token for token in token_ids))
    return digest.digest()


class BlockPool:
    """Pages 0..num_pages-1. Cached pages are reused least recently released first, after all free ones."""

    def __init__(self, num_pages: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_pages = num_pages
        self.enable_prefix_caching = enable_prefix_caching
        self._num_references = [0] * num_pages
        self._hash_of: list[bytes | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}
        self._free: list[int] = list(range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._num_reserved = 0

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_pages - self.num_available

    @property
    def num_spare(self) -> int:
        """Available pages that nobody was promised."""
        return self.num_available - self._num_reserved

    def reserve(self, num_pages: int) -> None:
        """Promise pages to a running request. Ask `num_spare` first."""
        assert num_pages <= self.num_spare, (num_pages, self.num_spare)
        self._num_reserved += num_pages

    def unreserve(self, num_pages: int) -> None:
        """End a promise, because the pages are about to be allocated or are no longer needed."""
        assert 0 <= num_pages <= self._num_reserved, (num_pages, self._num_reserved)
        self._num_reserved -= num_pages

    def is_shared(self, page: int) -> bool:
        return self._num_references[page] > 1

    def can_allocate(self, num_pages: int) -> bool:
        return num_pages <= self.num_available

    def allocate(self, num_pages: int) -> list[int]:
        """Fresh pages with one owner and no hash. Ask `can_allocate` first."""
        assert self.can_allocate(num_pages), (num_pages, self.num_available)
        return [self._take_page() for _ in range(num_pages)]

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference of each page. Without an owner a hashed page stays findable."""
        for page in pages:
            assert self._num_references[page] > 0, f"page {page} released without an owner"
            self._num_references[page] -= 1
            if self._num_references[page] == 0:
                if self._hash_of[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The longest run of cached or owned pages whose hashes lead the list. Changes nothing."""
        found = []
        for content in hashes:
            page = self._page_of.get(content)
            if page is None:
                break
            found.append(page)
        return found

    def num_unowned(self, pages: Iterable[int]) -> int:
        """How many of these found pages `share` would take out of `num_available`."""
        return sum(self._num_references[page] == 0 for page in pages)

    def share(self, pages: Iterable[int]) -> None:
        """Add an owner to pages that `find` returned."""
        for page in pages:
            if self._num_references[page] == 0:
                del self._cached[page]
            self._num_references[page] += 1

    def register(self, page: int, content: bytes) -> None:
        """Make a written, full page findable. The first page with a content keeps it."""
        assert self._num_references[page] > 0, f"page {page} has no owner"
        if (
            self.enable_prefix_caching
            and self._hash_of[page] is None
            and content not in self._page_of
        ):
            self._page_of[content] = page
            self._hash_of[page] = content

    def forget(self, page: int) -> None:
        """Drop the hash of a page whose content is about to change."""
        content = self._hash_of[page]
        if content is not None:
            del self._page_of[content]
            self._hash_of[page] = None

    def forget_all(self) -> None:
        """Drop every hash, because nobody knows what the pages hold; cached pages become free."""
        self._page_of.clear()
        self._hash_of = [None] * self.num_pages
        self._free += self._cached
        self._cached.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]], num_reserved: int = 0) -> None:
        """Assert that ownership is exactly what these block tables say and that no page is lost."""
        assert self._num_reserved == num_reserved, (self._num_reserved, num_reserved)
        assert self.num_spare >= 0, "more pages promised than there are"
        expected = [0] * self.num_pages
        for table in tables:
            assert len(set(table)) == len(table), f"a page twice in one table: {table}"
            for page in table:
                expected[page] += 1
        assert expected == self._num_references, "references differ from the block tables"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a page is free twice"
        for page in range(self.num_pages):
            states = (page in free, page in cached, self._num_references[page] > 0)
            assert sum(states) == 1, f"page {page}: free, cached, owned = {states}"
            hashed = self._hash_of[page]
            assert hashed is None or self._page_of[hashed] == page, f"page {page}: stale hash"
            assert not (page in free and hashed is not None), f"free page {page} has a hash"
        assert len(self._page_of) == sum(h is not None for h in self._hash_of)

    def _take_page(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._cached.popitem(last=False)
            self.forget(page)
        self._num_references[page] = 1
        return page
