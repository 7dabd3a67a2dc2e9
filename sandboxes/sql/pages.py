"""A database file in memory whose copies share what they have in common."""

from __future__ import annotations

from typing import Self

HEADER = b"SQLite format 3\x00"


def page_size(image: bytes) -> int:
    """Bytes of one page, as the header of a SQLite database image says; see https://sqlite.org/fileformat.html."""
    size = int.from_bytes(image[16:18], "big")
    return 65536 if size == 1 else size


class Pages:
    """An image that any number of copies share, and the pages in which this copy differs from it.

    Pages are never changed in place, so a copy shares them too: it costs what differs from the image, in references.
    """

    __slots__ = ("_changed", "_count", "_from_image", "_image", "page_size")

    def __init__(self, image: bytes) -> None:
        self.page_size = page_size(image)
        self._image = image
        self._changed: dict[int, bytes] = {}
        self._count = len(image) // self.page_size
        self._from_image = self._count  # a page from here on is not the image's any more, even if it was

    @property
    def size(self) -> int:
        """Bytes of the whole database."""
        return self._count * self.page_size

    @property
    def changed_bytes(self) -> int:
        """Bytes of the pages that are not the image's: what this copy may hold for itself."""
        return len(self._changed) * self.page_size

    def copy(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.page_size, twin._image, twin._changed = self.page_size, self._image, self._changed.copy()
        twin._count, twin._from_image = self._count, self._from_image
        return twin

    def read(self, offset: int, amount: int) -> bytes:
        """`amount` bytes of one page, or fewer at the end of the database."""
        number, start = divmod(offset, self.page_size)
        page = self._changed.get(number)
        if page is not None:
            return page[start : start + amount] if amount < self.page_size else page
        if number < self._from_image:
            return self._image[offset : offset + amount]
        # A page between the old end and one that was written beyond it has not been written itself.
        return bytes(amount) if number < self._count else b""

    def write(self, offset: int, page: bytes) -> None:
        """Raises `ValueError` for what is no whole page in its place, which SQLite never writes into a database."""
        number, start = divmod(offset, self.page_size)
        if start or len(page) != self.page_size:
            raise ValueError(f"{len(page)} bytes at {offset} are no page of {self.page_size} bytes")
        if number < self._from_image and self._image[offset : offset + self.page_size] == page:
            self._changed.pop(number, None)  # taken back: it need not be held any longer
        else:
            self._changed[number] = page
        self._count = max(self._count, number + 1)

    def truncate(self, size: int) -> None:
        """Cut everything from `size` bytes on."""
        count = -(-size // self.page_size)
        if count < self._count:
            self._changed = {number: page for number, page in self._changed.items() if number < count}
            self._from_image = min(self._from_image, count)
        self._count = count

    def image(self) -> bytes:
        """The whole database as one piece."""
        if not self._changed and self._count * self.page_size == len(self._image) and self._from_image == self._count:
            return self._image
        size, whole = self.page_size, bytearray(self._count * self.page_size)
        kept = self._from_image * size
        whole[:kept] = self._image[:kept]
        for number, page in self._changed.items():
            whole[number * size : (number + 1) * size] = page
        return bytes(whole)
