"""Small programs with products and sums, and how many of the sums ptxas 13.5.37 makes fmas of for sm_90."""

from __future__ import annotations

HEAD = """.version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 in) {
.reg .b64 %o,%i;.reg .f32 %f<20>;.reg .pred %p<3>;.reg .b32 %r<5>;ld.param.u64 %o,[out];ld.param.u64 %i,[in];
ld.global.f32 %f1,[%i];ld.global.f32 %f2,[%i+4];ld.global.f32 %f3,[%i+8];ld.global.f32 %f4,[%i+12];ld.global.f32 %f5,[%i+16];
"""
CASES: dict[str, tuple[str, int]] = {
    "a product and a sum": ("mul.f32 %f6,%f1,%f2;\nadd.f32 %f7,%f6,%f3;", 1),
    "as the second operand": ("mul.f32 %f6,%f1,%f2;\nadd.f32 %f7,%f3,%f6;", 1),
    "less a number": ("mul.f32 %f6,%f1,%f2;\nsub.f32 %f7,%f6,%f3;", 1),
    "from a number": ("mul.f32 %f6,%f1,%f2;\nsub.f32 %f7,%f3,%f6;", 1),
    "two products": ("mul.f32 %f6,%f1,%f2;\nmul.f32 %f5,%f3,%f4;\nadd.f32 %f7,%f6,%f5;", 1),
    "two products, the second first": ("mul.f32 %f5,%f3,%f4;\nmul.f32 %f6,%f1,%f2;\nsub.f32 %f7,%f6,%f5;", 1),
    "one product in two sums": ("mul.f32 %f6,%f1,%f2;\nadd.f32 %f7,%f6,%f3;\nadd.f32 %f8,%f6,%f4;\nst.global.f32 [%o+4],%f8;", 2),
    "a product that is stored too": ("mul.f32 %f6,%f1,%f2;\nadd.f32 %f7,%f6,%f3;\nst.global.f32 [%o+4],%f6;", 0),
    "a product twice in one sum": ("mul.f32 %f6,%f1,%f2;\nadd.f32 %f7,%f6,%f6;", 0),
    "the product rounded": ("mul.rn.f32 %f6,%f1,%f2;\nadd.f32 %f7,%f6,%f3;", 0),
    "the sum rounded": ("mul.f32 %f6,%f1,%f2;\nadd.rn.f32 %f7,%f6,%f3;", 0),
    "both flushed": ("mul.ftz.f32 %f6,%f1,%f2;\nadd.ftz.f32 %f7,%f6,%f3;", 1),
    "only the product flushed": ("mul.ftz.f32 %f6,%f1,%f2;\nadd.f32 %f7,%f6,%f3;", 0),
    "only the sum flushed": ("mul.f32 %f6,%f1,%f2;\nadd.ftz.f32 %f7,%f6,%f3;", 0),
    "behind a jump": ("mul.f32 %f6,%f1,%f2;\nsetp.gt.f32 %p1,%f4,%f5;\n@!%p1 bra $L;\nadd.f32 %f7,%f6,%f3;\nst.global.f32 [%o+4],%f7;\n$L:", 0),
    "negated in between": ("mul.f32 %f6,%f1,%f2;\nneg.f32 %f8,%f6;\nadd.f32 %f7,%f8,%f3;", 1),
    "times a constant": ("mul.f32 %f6,%f1,0f3F000000;\nadd.f32 %f7,%f6,%f3;", 1),
    "a product of a product": ("mul.f32 %f6,%f1,%f2;\nmul.f32 %f8,%f6,%f3;\nadd.f32 %f7,%f8,%f4;", 1),
    "one after the other": ("mul.f32 %f6,%f1,%f2;\nmul.f32 %f8,%f3,%f4;\nadd.f32 %f9,%f6,%f5;\nadd.f32 %f7,%f9,%f8;", 2),
    "two products, the first stored": ("mul.f32 %f6,%f1,%f2;\nmul.f32 %f8,%f3,%f4;\nadd.f32 %f7,%f6,%f8;\nst.global.f32 [%o+4],%f6;", 1),
    "saturated": ("mul.f32 %f6,%f1,%f2;\nadd.sat.f32 %f7,%f6,%f3;", 1),
    "under a predicate": ("mul.f32 %f6,%f1,%f2;\nsetp.gt.f32 %p1,%f4,%f5;\nmov.f32 %f7,%f3;\n@%p1 add.f32 %f7,%f6,%f3;", 1),
}  # fmt: skip


def text_of(body: str) -> str:
    """The program, which stores its last sum."""
    return f"{HEAD}{body}\nst.global.f32 [%o],%f7;\nret;\n}}\n"
