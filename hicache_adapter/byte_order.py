"""In which order the bytes of a stored page lie, apart from how they lie in the host pool of one engine."""

CANONICAL = "canonical"
BYTE_ORDERS = ("native", CANONICAL)
"""What the operator chooses from: the order of the host layout, or one order for all of them."""

# One object's bytes in the canonical order, slowest first: layer, K or V, token, head, element; of latent rows layer,
# token, element. It has the name of the layout whose pages lie in it anyway, so that such engines share with those of
# other layouts, and go on finding what they have stored, without being told.
_CANONICAL_HEADS = "layer_first"
_CANONICAL_ROWS = "page_first_direct"


def stored_order(layout: str, *, replicated: bool, canonical: bool, flat_pages: bool = False) -> str:
    """The name of the order, as an identity has it.

    `replicated`: latent rows, the same on all TP ranks. `flat_pages`: the bytes come from SGLang's get_data_page
    (interface v0).
    """
    if replicated:
        # Two layouts with the same bytes: a page of either is rows of one layer after those of another.
        return _CANONICAL_ROWS if canonical or layout == "layer_first" else layout
    if canonical:
        return _CANONICAL_HEADS
    if flat_pages and layout == "layer_first":
        return "layer_first/flat"  # all of K before all of V
    return layout
