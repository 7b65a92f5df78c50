"""form"""
