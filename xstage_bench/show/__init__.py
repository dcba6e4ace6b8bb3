"""What people and other programs are shown: figures, reports, pages, exports."""
